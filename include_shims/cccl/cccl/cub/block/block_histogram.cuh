#include <cub/block/block_histogram.cuh> // of the CCCL that was chosen, whatever its folder
