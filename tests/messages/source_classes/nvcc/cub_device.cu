#include <cub/device/device_reduce.cuh>
void sum(float* in, float* out, int n, void* tmp, size_t& bytes) {
  cub::DeviceReduce::Sum(tmp, bytes, in, out, n);
}
extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1.0f; }
