#include <cub/block/block_reduce.cuh> // of the CCCL that was chosen, whatever its folder
