#include <cub/device/device_run_length_encode.cuh> // of the CCCL that was chosen, whatever its folder
