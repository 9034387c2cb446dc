__global__ void g(float* p) {} void f(float* p) { g<<<1, 1>>>(p); }
extern "C" __global__ void k(float* p) { p[0] = 1; }
