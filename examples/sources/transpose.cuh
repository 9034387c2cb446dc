#pragma once

template <typename T, int TILE>
__device__ void transpose_tile(const T* in, T* out, int rows, int columns) {
    __shared__ T tile[TILE][TILE + 1];
    int c = blockIdx.x * TILE + threadIdx.x, r = blockIdx.y * TILE + threadIdx.y;
    if (r < rows && c < columns) tile[threadIdx.y][threadIdx.x] = in[r * columns + c];
    __syncthreads();
    c = blockIdx.y * TILE + threadIdx.x, r = blockIdx.x * TILE + threadIdx.y;
    if (r < columns && c < rows) out[r * rows + c] = tile[threadIdx.x][threadIdx.y];
}
