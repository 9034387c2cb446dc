#include <cub/block/radix_rank_sort_operations.cuh> // of the CCCL that was chosen, whatever its folder
