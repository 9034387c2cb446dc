#include <cub/thread/thread_store.cuh> // of the CCCL that was chosen, whatever its folder
