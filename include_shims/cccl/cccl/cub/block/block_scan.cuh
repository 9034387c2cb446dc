#include <cub/block/block_scan.cuh> // of the CCCL that was chosen, whatever its folder
