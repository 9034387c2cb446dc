#include <cub/grid/grid_mapping.cuh> // of the CCCL that was chosen, whatever its folder
