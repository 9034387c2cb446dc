#include <cub/block/block_store.cuh> // of the CCCL that was chosen, whatever its folder
