#include <cub/device/device_segmented_sort.cuh> // of the CCCL that was chosen, whatever its folder
