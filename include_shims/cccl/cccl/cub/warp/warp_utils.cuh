#include <cub/warp/warp_utils.cuh> // of the CCCL that was chosen, whatever its folder
