#include <cub/device/device_batched_topk.cuh> // of the CCCL that was chosen, whatever its folder
