#include <cub/block/block_adjacent_difference.cuh> // of the CCCL that was chosen, whatever its folder
