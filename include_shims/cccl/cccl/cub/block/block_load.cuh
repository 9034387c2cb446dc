#include <cub/block/block_load.cuh> // of the CCCL that was chosen, whatever its folder
