#include <utility>
extern "C" __global__ void k(float* p) { p[threadIdx.x] = std::mvoe(1.0f); }
