extern "C" __global__ void k(uint* p, uint n) { p[threadIdx.x] = n; }
