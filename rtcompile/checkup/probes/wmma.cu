#include <mma.h>
using namespace nvcuda::wmma;
__global__ void k(float* x) {
  fragment<accumulator, 16, 16, 16, float> c;
  fill_fragment(c, 1.0f);
  store_matrix_sync(x, c, 16, mem_row_major);
}
