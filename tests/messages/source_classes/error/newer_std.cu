// options: -std=c++17
template <class T> concept C = true;
extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1.0f; }
