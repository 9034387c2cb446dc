#include <cstdint>
#include <limits>
#include <type_traits>
__global__ void k(std::uint32_t* x) { *x = std::numeric_limits<std::uint32_t>::max(); }
