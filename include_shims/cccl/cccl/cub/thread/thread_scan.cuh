#include <cub/thread/thread_scan.cuh> // of the CCCL that was chosen, whatever its folder
