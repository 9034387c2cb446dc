extern __device__ float helper(float);
extern "C" __global__ void k(float* p) { p[threadIdx.x] = helper(1.0f); }
