extern "C" __global__ void k(float* p) { p[threadIdx.x] = __FLT_MAX__; }
