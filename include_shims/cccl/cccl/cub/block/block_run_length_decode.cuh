#include <cub/block/block_run_length_decode.cuh> // of the CCCL that was chosen, whatever its folder
