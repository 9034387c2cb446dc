#include <cub/cub.cuh>
extern "C" __global__ void k(float* p) {
  using Reduce = cub::BlockReduce<float, 128>;
  __shared__ typename Reduce::TempStorage s;
  float sum = Reduce(s).Sum(p[threadIdx.x]);
  if (threadIdx.x == 0) p[0] = sum;
}
