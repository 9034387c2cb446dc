#include <cub/device/device_segmented_reduce.cuh> // of the CCCL that was chosen, whatever its folder
