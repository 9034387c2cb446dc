"""A table of the standard header that declares each name, for sources that forgot the include.

NVCC's own headers include much of the standard library, so code written for NVCC often
includes less than it uses. NVRTC includes nothing; of these headers we have versions for the
device.
"""

from __future__ import annotations

from collections.abc import Mapping


def _by_name(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: header for header, names in headers.items() for name in names.split()}


_STD = {
    "cmath": (
        "abs acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 "
        "expm1 fabs fdim floor fma fmax fmin fmod frexp hypot ilogb isfinite isinf isnan ldexp "
        "lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan nearbyint "
        "nextafter pow remainder remquo rint round scalbln scalbn signbit sin sinh sqrt tan tanh "
        "tgamma trunc"
    ),
    "algorithm": "clamp max min minmax",
    "limits": "numeric_limits",
    "cstdint": (
        "int16_t int32_t int64_t int8_t intmax_t intptr_t uint16_t uint32_t uint64_t uint8_t "
        "uintmax_t uintptr_t"
    ),
    "cstddef": "byte max_align_t nullptr_t ptrdiff_t size_t",
    "utility": (
        "as_const cmp_less declval exchange forward in_place in_place_t index_sequence "
        "index_sequence_for integer_sequence make_index_sequence make_integer_sequence make_pair "
        "move move_if_noexcept pair piecewise_construct swap"
    ),
    "type_traits": (
        "add_const add_const_t add_pointer_t aligned_storage alignment_of bool_constant "
        "common_type common_type_t conditional conditional_t conjunction_v decay decay_t "
        "disjunction_v enable_if enable_if_t extent_v false_type integral_constant invoke_result "
        "invoke_result_t is_arithmetic is_arithmetic_v is_array_v is_assignable_v is_base_of "
        "is_base_of_v is_class_v is_const_v is_constant_evaluated is_constructible_v "
        "is_convertible is_convertible_v is_copy_constructible_v is_default_constructible_v "
        "is_empty is_empty_v is_enum_v is_final_v is_floating_point is_floating_point_v "
        "is_function_v is_fundamental_v is_integral is_integral_v is_invocable_v "
        "is_lvalue_reference_v is_move_constructible_v is_pod_v is_pointer is_pointer_v "
        "is_reference_v is_rvalue_reference_v is_same is_same_v is_signed is_signed_v "
        "is_standard_layout_v is_trivial_v is_trivially_copyable is_trivially_copyable_v "
        "is_unsigned is_unsigned_v is_void is_void_v make_signed make_signed_t make_unsigned "
        "make_unsigned_t negation_v rank_v remove_all_extents_t remove_const remove_const_t "
        "remove_cv remove_cv_t remove_cvref_t remove_extent_t remove_pointer remove_pointer_t "
        "remove_reference remove_reference_t remove_volatile_t true_type type_identity_t "
        "underlying_type underlying_type_t void_t"
    ),
    "tuple": (
        "apply forward_as_tuple get ignore make_from_tuple make_tuple tie tuple tuple_cat "
        "tuple_element tuple_element_t tuple_size tuple_size_v"
    ),
    "array": "array to_array",
    "optional": "make_optional nullopt nullopt_t optional",
    "variant": "get_if holds_alternative monostate variant variant_alternative_t visit",
    "functional": (
        "bit_and bit_or bit_xor cref divides equal_to greater greater_equal invoke less "
        "less_equal logical_and logical_not logical_or minus modulus multiplies negate "
        "not_equal_to plus ref reference_wrapper"
    ),
    "complex": "arg complex conj imag norm polar real",
    "atomic": (
        "atomic atomic_flag atomic_thread_fence memory_order memory_order_acq_rel "
        "memory_order_acquire memory_order_relaxed memory_order_release memory_order_seq_cst"
    ),
    "bit": (
        "bit_cast bit_ceil bit_floor bit_width countl_one countl_zero countr_one countr_zero "
        "endian has_single_bit popcount rotl rotr"
    ),
    "initializer_list": "initializer_list",
    "span": "dynamic_extent span",
    "numeric": "accumulate gcd iota lcm midpoint",
    "iterator": "advance begin data distance end iterator_traits next prev reverse_iterator size",
    "memory": "addressof",
}

# Only names that NVCC declares without an include: others are missing there too.
_GLOBAL = {
    "climits": (
        "CHAR_BIT CHAR_MAX CHAR_MIN INT_MAX INT_MIN LLONG_MAX LLONG_MIN LONG_MAX LONG_MIN "
        "SCHAR_MAX SCHAR_MIN SHRT_MAX SHRT_MIN UCHAR_MAX UINT_MAX ULLONG_MAX ULONG_MAX USHRT_MAX"
    ),
    "cmath": (
        "HUGE_VAL HUGE_VALF INFINITY M_1_PI M_2_PI M_2_SQRTPI M_E M_LN10 M_LN2 M_LOG10E M_LOG2E "
        "M_PI M_PI_2 M_PI_4 M_SQRT1_2 M_SQRT2 NAN"
    ),
    "cstdint": "int16_t int32_t int64_t int8_t",
}

# Names of CUDA and of C that NVCC does not declare by itself either.
_DECLARED = {
    "cstdint": (
        "uint8_t uint16_t uint32_t uint64_t uintptr_t intptr_t INT32_MAX INT64_MAX UINT32_MAX "
        "UINT64_MAX"
    ),
    "cuda_fp16.h": "half half2 __half __half2 __float2half __half2float",
    "cuda_bf16.h": "__nv_bfloat16 __nv_bfloat162 nv_bfloat16",
    "cuda_fp8.h": "__nv_fp8_e4m3 __nv_fp8_e5m2 __nv_fp8_e8m0",
    "cfloat": "FLT_MAX FLT_MIN FLT_EPSILON DBL_MAX DBL_MIN DBL_EPSILON",
    "math_constants.h": ("CUDART_INF_F CUDART_NAN_F CUDART_PI_F CUDART_INF CUDART_NAN CUDART_PI"),
    "curand_kernel.h": "curandState curand_init curandStatePhilox4_32_10_t",
    "cooperative_groups.h": "cooperative_groups",
    "cuda_device_runtime_api.h": (
        "cudaGridDependencySynchronize cudaTriggerProgrammaticLaunchCompletion"
    ),
    "cupy/complex.cuh": "complex",
    "cuComplex.h": "cuFloatComplex cuDoubleComplex cuComplex",
    "mma.h": "nvcuda wmma",
}

# Name to header, for namespace std and for the global namespace.
STD = _by_name(_STD)
GLOBAL = _by_name(_GLOBAL)
DECLARED = {**GLOBAL, **_by_name(_DECLARED)}
