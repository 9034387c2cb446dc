#include <cub/thread/thread_simd.cuh> // of the CCCL that was chosen, whatever its folder
