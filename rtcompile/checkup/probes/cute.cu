#include <cute/tensor.hpp>
__global__ void k(float* x) {
  auto t = cute::make_tensor(x, cute::make_shape(cute::Int<8>{}));
  cute::clear(t);
}
