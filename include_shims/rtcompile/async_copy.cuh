// Copies from global to shared memory for multi-stage pipelines, legal for every element type.
//
// The hardware's cp.async copies 4, 8 or 16 bytes between addresses that are multiples of that size. So a
// single half, or four floats at an unaligned address, cannot be copied. These functions choose the widest
// legal copy at compile time from the known alignment, and plain loads if there is none, or no cp.async
// (before sm_80). The pipeline around them stays the same:
//
//     rtcompile::copy_async<8, 16>(&shared[i], &global[j]);  // 8 elements, both addresses % 16 == 0
//     rtcompile::commit_copies();                            // closes a stage
//     rtcompile::wait_copies<1>();                           // all stages but the newest have landed
//     __syncthreads();
#pragma once

namespace rtcompile {

// Bytes per copy (16, 8 or 4) of `Elements` neighbours of type T whose addresses are multiples of
// `Alignment` bytes; 0 where no cp.async is legal.
template <class T, int Elements, int Alignment = alignof(T)>
constexpr int async_width() {
    static_assert(Elements > 0, "nothing to copy");
    static_assert(Alignment > 0 && (Alignment & (Alignment - 1)) == 0, "alignments are powers of 2");
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    for (int width = 16; width >= 4; width /= 2)
        if (Alignment % width == 0 && Elements * sizeof(T) % width == 0) return width;
#endif
    return 0;
}

// One cp.async of `Width` bytes: the first `bytes` are read, the rest become zeros. Needs sm_80.
template <int Width>
__device__ __forceinline__ void cp_async(void* shared, const void* global, int bytes = Width) {
    static_assert(Width == 4 || Width == 8 || Width == 16,
                  "cp.async copies 4, 8 or 16 bytes; rtcompile::copy_async takes any element type");
    const unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    if constexpr (Width == 16)  // .cg keeps the tile out of L1, and exists for 16 bytes only
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     ::"r"(to), "l"(global), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     ::"r"(to), "l"(global), "n"(Width), "r"(bytes) : "memory");
}

// Copies `Elements` neighbours: `valid` of them from `global`, which is not read beyond those, and
// zeros for the rest. Both pointers must be multiples of `Alignment` bytes. Visible to the block
// after wait_copies and __syncthreads, whether it was asynchronous or not.
template <int Elements, int Alignment, class T>
__device__ __forceinline__ void copy_async(T* shared, const T* global, int valid = Elements) {
    constexpr int width = async_width<T, Elements, Alignment>();
    if constexpr (width > 0)
        if (valid >= Elements) {
#pragma unroll
            for (int at = 0; at < Elements * (int)sizeof(T); at += width)
                cp_async<width>(reinterpret_cast<char*>(shared) + at,
                                reinterpret_cast<const char*>(global) + at);
            return;
        }
    // Not a cp.async of fewer bytes: compute-sanitizer counts it as a read of all of its 4, 8 or 16,
    // which for the last elements of an allocation is one beyond its end.
#pragma unroll
    for (int i = 0; i < Elements; ++i) shared[i] = i < valid ? global[i] : T{};
}

// Closes a stage: the copies since the last one. Every thread closes every stage, even an empty one,
// or its count would be another than its neighbours'.
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most `Pending` of the newest stages are still on their way to this thread.
template <int Pending>
__device__ __forceinline__ void wait_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#endif
}

// `Threads` threads copy the Rows x Columns tile at (row, column) of a row-major matrix, zeros where
// it hangs over an edge: also the first row's or column's, where `row` or `column` is negative.
// `matrix`, its pitch and `column`, counted in bytes, and `tile` are multiples of `Alignment`; the
// rows of the tile lie `Columns` elements apart.
template <int Rows, int Columns, int Alignment, int Threads, class T>
__device__ __forceinline__ void copy_tile_async(T* tile, const T* matrix, int row, int column,
                                                int rows, int columns, int pitch) {
    constexpr int width = async_width<T, Columns, Alignment>();
    // One at a time where a copy is no whole number of elements: uchar3 is 3 bytes.
    constexpr int elements = width && width % sizeof(T) == 0 ? width / (int)sizeof(T) : 1;
    constexpr int chunks = Columns / elements;
    for (int i = threadIdx.x; i < Rows * chunks; i += Threads) {
        const int r = i / chunks, c = i % chunks * elements;
        const bool inside = (unsigned)(row + r) < (unsigned)rows && column + c >= 0;
        const int left = inside ? columns - (column + c) : 0;
        const int valid = left < 0 ? 0 : left < elements ? left : elements;
        copy_async<elements, Alignment>(
            tile + r * Columns + c, matrix + (long long)(row + r) * pitch + column + c, valid);
    }
}

}  // namespace rtcompile
