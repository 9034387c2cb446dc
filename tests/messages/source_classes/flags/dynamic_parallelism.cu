__global__ void child(float* p) { p[threadIdx.x] = 1.0f; }
extern "C" __global__ void k(float* p) { child<<<1, 32>>>(p); }
