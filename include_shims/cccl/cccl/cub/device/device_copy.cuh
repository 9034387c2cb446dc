#include <cub/device/device_copy.cuh> // of the CCCL that was chosen, whatever its folder
