#include <cub/block/block_shuffle.cuh> // of the CCCL that was chosen, whatever its folder
