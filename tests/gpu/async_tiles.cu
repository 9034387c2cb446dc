
#include <rtcompile/async_copy.cuh>

constexpr int threads = 64;

template <int Rows, int Columns, int Alignment, class T>
__global__ void tile_of(const T* matrix, T* out, int row, int column, int rows, int columns, int pitch) {
    __shared__ alignas(16) T tile[Rows * Columns];
    rtcompile::copy_tile_async<Rows, Columns, Alignment, threads>(
        tile, matrix, row, column, rows, columns, pitch);
    rtcompile::commit_copies();
    rtcompile::wait_copies<0>();
    __syncthreads();
    for (int i = threadIdx.x; i < Rows * Columns; i += threads) out[i] = tile[i];
}
