// Reductions over a block. Every thread gets the result.
#pragma once

#include <cub/block/block_reduce.cuh>

namespace fastrows {

template <int Threads, class T, class Op> __device__ T over_block(T value, Op op) {
    using Reduce = cub::BlockReduce<T, Threads>;
    __shared__ typename Reduce::TempStorage scratch;
    __shared__ T result;
    __syncthreads();  // a reduction before this one has been read by all
    const T reduced = Reduce(scratch).Reduce(value, op);
    if (threadIdx.x == 0) result = reduced;
    __syncthreads();
    return result;
}

struct Sum {
    template <class T> __device__ T operator()(T a, T b) const { return a + b; }
};
struct Max {
    template <class T> __device__ T operator()(T a, T b) const { return a > b ? a : b; }
};

}  // namespace fastrows
