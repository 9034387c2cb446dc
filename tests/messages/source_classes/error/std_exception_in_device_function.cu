// No exceptions in device code.
#include <stdexcept>
__device__ void f(int x){ if(x) throw std::runtime_error("a"); } __global__ void k(int* p){ f(*p); }
