// A host function, in a kernel.
#include <algorithm>
__global__ void k(float* p){ std::sort(p,p+3); }
