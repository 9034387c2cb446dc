#include <cub/device/device_reduce.cuh> // of the CCCL that was chosen, whatever its folder
