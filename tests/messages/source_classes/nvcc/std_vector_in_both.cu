// NVCC only warns of a class of the host's library in a function for both sides, and in host code there is none.
#include <vector>
__host__ __device__ inline float f(float x) { std::vector<float> v; v.push_back(x); return v[0]; }
float g(float x) { std::vector<float> v(3, x); return v[0]; }
extern "C" __global__ void k(float* x) { x[0] *= 2; }
