#include <cub/block/block_exchange.cuh> // of the CCCL that was chosen, whatever its folder
