#include <cub/warp/warp_scan.cuh> // of the CCCL that was chosen, whatever its folder
