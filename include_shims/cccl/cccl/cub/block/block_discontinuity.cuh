#include <cub/block/block_discontinuity.cuh> // of the CCCL that was chosen, whatever its folder
