#include <cub/block/block_merge_sort.cuh> // of the CCCL that was chosen, whatever its folder
