#include <cub/device/device_histogram.cuh> // of the CCCL that was chosen, whatever its folder
