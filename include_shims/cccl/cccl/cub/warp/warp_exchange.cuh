#include <cub/warp/warp_exchange.cuh> // of the CCCL that was chosen, whatever its folder
