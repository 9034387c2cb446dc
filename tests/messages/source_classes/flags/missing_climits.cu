extern "C" __global__ void k(float* p) { p[threadIdx.x] = INT_MAX; }
