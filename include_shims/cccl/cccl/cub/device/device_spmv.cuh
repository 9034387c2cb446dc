#include <cub/device/device_spmv.cuh> // of the CCCL that was chosen, whatever its folder
