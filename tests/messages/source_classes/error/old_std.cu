// options: -std=c++14
extern "C" __global__ void k(float* p) { if constexpr (sizeof(int) == 4) p[0] = 1; auto [a, b] = p; }
