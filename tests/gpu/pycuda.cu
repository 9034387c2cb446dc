
#include <math.h>
#define N 8
typedef unsigned long long ULL;
__constant__ ULL table[N];

__global__ void weighted(float* sums, const float* x, int n) {
    extern __shared__ float partial[];
    partial[threadIdx.x] = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) partial[threadIdx.x] += x[i] * table[i % N];
    __syncthreads();
    atomicAdd(sums + blockIdx.x, partial[threadIdx.x]);
}

__global__ void window(float* out, const float* image, int width, int height, float scale, bool mirrored) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    out[y * width + x] = sqrtf(image[y * width + (mirrored ? width - 1 - x : x)]) * scale;
}

struct Pair { int n; double x; };
__global__ void structure(double* out, Pair pair) { *out = pair.n * pair.x; }
