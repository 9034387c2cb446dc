#include <cub/grid/grid_queue.cuh> // of the CCCL that was chosen, whatever its folder
