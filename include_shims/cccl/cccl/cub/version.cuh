#include <cub/version.cuh> // of the CCCL that was chosen, whatever its folder
