// CCCL 3.2 and newer declares std::tuple_size and std::tuple_element for NVRTC, as the standard does.
// CUTLASS 4.2 and older declares both again, as templates of any number of types, which is an error;
// CUTLASS 4.5 includes a header for them that CCCL 3.5 no longer has. CuTe does either only where
// this macro is defined. So the macro goes, and what CuTe would have added to std is added here.
#pragma once
#include_next <cute/config.hpp>

#if defined(__CUDACC_RTC__) && defined(CUTE_STL_NAMESPACE_IS_CUDA_STD)
#undef CUTE_STL_NAMESPACE_IS_CUDA_STD
#include <cuda/std/cstddef>
#include <cuda/std/tuple>

namespace cute {
template <class T, size_t N> struct array;
template <class T, size_t N> struct array_subbyte;
template <class... T> struct tuple;
template <class... T> struct type_list;
template <class... T> struct ArithmeticTuple;
} // namespace cute

namespace std {
template <class T, size_t N>
struct tuple_size<cute::array<T, N>> : cuda::std::integral_constant<size_t, N> {};
template <size_t I, class T, size_t N>
struct tuple_element<I, cute::array<T, N>> { using type = T; };

template <class T, size_t N>
struct tuple_size<cute::array_subbyte<T, N>> : cuda::std::integral_constant<size_t, N> {};
template <size_t I, class T, size_t N>
struct tuple_element<I, cute::array_subbyte<T, N>> { using type = T; };

template <class... T>
struct tuple_size<cute::tuple<T...>> : cuda::std::integral_constant<size_t, sizeof...(T)> {};
template <size_t I, class... T>
struct tuple_element<I, cute::tuple<T...>> : cuda::std::tuple_element<I, cuda::std::tuple<T...>> {};

template <class... T>
struct tuple_size<cute::type_list<T...>> : cuda::std::integral_constant<size_t, sizeof...(T)> {};
template <size_t I, class... T>
struct tuple_element<I, cute::type_list<T...>> : cuda::std::tuple_element<I, cuda::std::tuple<T...>> {};

template <class... T>
struct tuple_size<cute::ArithmeticTuple<T...>> : cuda::std::integral_constant<size_t, sizeof...(T)> {};
template <size_t I, class... T>
struct tuple_element<I, cute::ArithmeticTuple<T...>>
    : cuda::std::tuple_element<I, cuda::std::tuple<T...>> {};
} // namespace std
#endif
