// A whole tutorial program: kernel, allocation, launch, copy back.
#include <cstdio>
#include <cuda_runtime.h>
__global__ void k(float* p) { p[threadIdx.x] = 1.0f; }
int main() {
  float *d, h[32];
  cudaMalloc(&d, sizeof h);
  k<<<1, 32>>>(d);
  cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost);
  std::printf("%f\n", h[0]);
  return cudaFree(d);
}
