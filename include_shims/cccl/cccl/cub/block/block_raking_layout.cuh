#include <cub/block/block_raking_layout.cuh> // of the CCCL that was chosen, whatever its folder
