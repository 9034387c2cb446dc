__device__ __noinline__ int f(int x) { return x + 1; }
__global__ void k(int* x) { *x = f(*x); }
