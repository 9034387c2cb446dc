extern "C" __global__ void k(float* p) { p[threadIdx.x] = M_PI; }
