#include <cub/thread/thread_operators.cuh> // of the CCCL that was chosen, whatever its folder
