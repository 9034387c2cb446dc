extern "C" __global__ void kk(uint32_t* p) { p[0] = 1; }
extern "C" __global__ void k(float* p) { p[0] = 1; }
