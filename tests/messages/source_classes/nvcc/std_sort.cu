#include <algorithm>
void order(float* a, int n) { std::sort(a, a + n); }
extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1.0f; }
