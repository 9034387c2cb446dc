#include <mma.h>
extern "C" __global__ void k(float* p) { nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 7, 7, 7, float> f; p[0] = f.x[0]; }
