#include <cub/device/device_topk.cuh> // of the CCCL that was chosen, whatever its folder
