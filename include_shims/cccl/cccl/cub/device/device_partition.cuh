#include <cub/device/device_partition.cuh> // of the CCCL that was chosen, whatever its folder
