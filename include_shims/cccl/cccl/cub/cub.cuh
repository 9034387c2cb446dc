#include <cub/cub.cuh> // of the CCCL that was chosen, whatever its folder
