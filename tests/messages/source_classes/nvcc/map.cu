#include <map>
#include <string>
std::map<std::string, int> registry;
extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1.0f; }
