#include <cub/thread/thread_search.cuh> // of the CCCL that was chosen, whatever its folder
