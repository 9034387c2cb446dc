__device__ float add(float a, float b) { return a + b; }
extern "C" __global__ void k(float* p) { p[threadIdx.x] = add(1.0f); }
