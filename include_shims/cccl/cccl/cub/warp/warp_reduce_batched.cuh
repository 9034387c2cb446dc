#include <cub/warp/warp_reduce_batched.cuh> // of the CCCL that was chosen, whatever its folder
