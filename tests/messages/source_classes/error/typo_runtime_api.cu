#include <cuda_runtime_api.h>
void f() { cudaMallc(0, 0); }
extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1.0f; }
