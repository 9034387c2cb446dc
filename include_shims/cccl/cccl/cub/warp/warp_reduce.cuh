#include <cub/warp/warp_reduce.cuh> // of the CCCL that was chosen, whatever its folder
