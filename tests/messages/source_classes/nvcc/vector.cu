#include <vector>
__host__ __device__ inline int one() { return 1; }
std::vector<int> sizes() { return {one()}; }
extern "C" __global__ void k(float* p) { p[threadIdx.x] = one(); }
