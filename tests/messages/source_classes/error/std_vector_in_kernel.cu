// A class of the host's library, which allocates memory, in a kernel.
#include <vector>
extern "C" __global__ void k(float* x) { std::vector<float> v; v.push_back(1); x[0] = v[0]; }
