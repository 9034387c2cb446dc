#include <chrono>
long now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1.0f; }
