#include <cub/grid/grid_even_share.cuh> // of the CCCL that was chosen, whatever its folder
