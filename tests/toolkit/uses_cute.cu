#include <cute/tensor.hpp>
using namespace cute;
extern "C" __global__ void k(float* x) {
  auto [m, n] = make_tuple(Int<8>{}, 4);
  cute::array<int, 2> two{{1, 2}};
  auto [first, second] = two;
  auto [i, j] = make_identity_tensor(make_shape(m, n))(1, 2);
  static_assert(decltype(get<1>(seq<3, 5>{}))::value == 5);
  static_assert(std::tuple_size<cute::array_subbyte<cute::int4_t, 8>>::value == 8);
  static_assert(std::tuple_size<cute::type_list<int, float>>::value == 2);
  x[i] = first + second + j;
}
