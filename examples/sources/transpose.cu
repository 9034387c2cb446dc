#include "transpose.cuh"

template <typename T>
__global__ void transpose(const T* in, T* out, int rows, int columns) {
    transpose_tile<T, 16>(in, out, rows, columns);
}
