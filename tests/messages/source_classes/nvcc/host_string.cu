#include <string>
std::string name(int i) { return "k" + std::to_string(i); }
extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1.0f; }
