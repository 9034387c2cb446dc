#include <cub/device/device_segmented_radix_sort.cuh> // of the CCCL that was chosen, whatever its folder
