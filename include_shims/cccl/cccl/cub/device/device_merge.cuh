#include <cub/device/device_merge.cuh> // of the CCCL that was chosen, whatever its folder
