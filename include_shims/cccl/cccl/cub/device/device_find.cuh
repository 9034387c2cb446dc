#include <cub/device/device_find.cuh> // of the CCCL that was chosen, whatever its folder
