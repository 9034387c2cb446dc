#include <filesystem>
bool there(const char* p) { return std::filesystem::exists(p); }
extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1.0f; }
