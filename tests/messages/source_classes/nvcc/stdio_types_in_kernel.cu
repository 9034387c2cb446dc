// NVCC includes <stdio.h> by itself, so that its types and macros are known, in device code too.
extern "C" __global__ void k(float* p, FILE* file) { p[threadIdx.x] = file == nullptr ? EOF : BUFSIZ; }
