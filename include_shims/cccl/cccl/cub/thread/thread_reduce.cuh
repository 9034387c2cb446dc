#include <cub/thread/thread_reduce.cuh> // of the CCCL that was chosen, whatever its folder
