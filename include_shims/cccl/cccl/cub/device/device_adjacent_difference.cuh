#include <cub/device/device_adjacent_difference.cuh> // of the CCCL that was chosen, whatever its folder
