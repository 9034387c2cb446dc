#include <cub/device/device_memcpy.cuh> // of the CCCL that was chosen, whatever its folder
