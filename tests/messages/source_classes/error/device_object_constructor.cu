struct A { __host__ __device__ A(int n) : n(n) {} int n; int* p = new int; }; __device__ A a(3);
extern "C" __global__ void k(float* p) { p[0] = 1; }
