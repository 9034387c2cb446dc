#include <cub/block/block_load_to_shared.cuh> // of the CCCL that was chosen, whatever its folder
