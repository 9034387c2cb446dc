#include <cuda_runtime_api.h>
void wait() { cudaDeviceSynchronize(); cudaStream_t s; cudaStreamCreate(&s); }
extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1.0f; }
