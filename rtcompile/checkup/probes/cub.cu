#include <cub/block/block_reduce.cuh>
__global__ void k(int* x) {
  using Reduce = cub::BlockReduce<int, 128>;
  __shared__ Reduce::TempStorage storage;
  *x = Reduce(storage).Sum(threadIdx.x);
}
