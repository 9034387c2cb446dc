#include <cub/warp/warp_store.cuh> // of the CCCL that was chosen, whatever its folder
