// CCCL 3.5 and newer has cuda::std::get of an integer_sequence, which returns a number. CuTe's own
// get returns a type that holds the number, and a call finds both. These overloads of one integer
// type each are more specialised than either, so a call inside CuTe takes them.
#pragma once
#include_next <cute/numeric/integer_sequence.hpp>

#if defined(__CUDACC_RTC__)
#define RTCOMPILE_CUTE_GET(...)                                        \
  template <size_t I, __VA_ARGS__... Ints>                              \
  CUTE_HOST_DEVICE constexpr                                            \
  tuple_element_t<I, integer_sequence<__VA_ARGS__, Ints...>>            \
  get(integer_sequence<__VA_ARGS__, Ints...>) {                         \
    static_assert(I < sizeof...(Ints), "Index out of range");           \
    return {};                                                          \
  }
namespace cute {
RTCOMPILE_CUTE_GET(bool)
RTCOMPILE_CUTE_GET(char)
RTCOMPILE_CUTE_GET(signed char)
RTCOMPILE_CUTE_GET(unsigned char)
RTCOMPILE_CUTE_GET(short)
RTCOMPILE_CUTE_GET(unsigned short)
RTCOMPILE_CUTE_GET(int)
RTCOMPILE_CUTE_GET(unsigned int)
RTCOMPILE_CUTE_GET(long)
RTCOMPILE_CUTE_GET(unsigned long)
RTCOMPILE_CUTE_GET(long long)
RTCOMPILE_CUTE_GET(unsigned long long)
} // namespace cute
#undef RTCOMPILE_CUTE_GET
#endif
