#include <cub/grid/grid_barrier.cuh> // of the CCCL that was chosen, whatever its folder
