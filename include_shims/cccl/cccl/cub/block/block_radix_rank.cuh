#include <cub/block/block_radix_rank.cuh> // of the CCCL that was chosen, whatever its folder
