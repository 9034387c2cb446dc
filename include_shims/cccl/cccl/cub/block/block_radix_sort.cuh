#include <cub/block/block_radix_sort.cuh> // of the CCCL that was chosen, whatever its folder
