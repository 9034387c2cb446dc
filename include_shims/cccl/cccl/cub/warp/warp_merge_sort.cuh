#include <cub/warp/warp_merge_sort.cuh> // of the CCCL that was chosen, whatever its folder
