#include <cub/device/device_for.cuh> // of the CCCL that was chosen, whatever its folder
