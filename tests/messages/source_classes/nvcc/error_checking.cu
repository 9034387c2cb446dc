#include <cstdio>
#define CHECK(call) do { cudaError_t e = (call); if (e != cudaSuccess) printf("%s\n", cudaGetErrorString(e)); } while (0)
__constant__ float table[4];
void upload(const float* host) { CHECK(cudaMemcpyToSymbol(table, host, sizeof table)); }
extern "C" __global__ void k(float* p) { p[threadIdx.x] = table[0]; }
