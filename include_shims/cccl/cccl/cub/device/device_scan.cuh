#include <cub/device/device_scan.cuh> // of the CCCL that was chosen, whatever its folder
