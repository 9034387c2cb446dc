#include <cub/device/device_select.cuh> // of the CCCL that was chosen, whatever its folder
