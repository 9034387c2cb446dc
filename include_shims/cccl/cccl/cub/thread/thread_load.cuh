#include <cub/thread/thread_load.cuh> // of the CCCL that was chosen, whatever its folder
