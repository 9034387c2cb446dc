#include <cub/thread/thread_sort.cuh> // of the CCCL that was chosen, whatever its folder
