#include <cub/warp/warp_load.cuh> // of the CCCL that was chosen, whatever its folder
