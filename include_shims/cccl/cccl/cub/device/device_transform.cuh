#include <cub/device/device_transform.cuh> // of the CCCL that was chosen, whatever its folder
