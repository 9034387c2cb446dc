#include <type_traits>
template <class T> using U = std::remove_cvrf_t<T>;
extern "C" __global__ void k(float* p) { p[threadIdx.x] = U<float>(1); }
