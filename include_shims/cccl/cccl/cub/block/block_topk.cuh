#include <cub/block/block_topk.cuh> // of the CCCL that was chosen, whatever its folder
