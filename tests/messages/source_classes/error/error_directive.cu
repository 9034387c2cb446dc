#ifndef TILE
#error "define TILE"
#endif
extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1.0f; }
