"""Matrix product on tensor cores with WMMA, for every operand type, at any size.

`nvcuda::wmma` needs headers from two packages (``mma.h``, ``crt/mma.h``) and the real architecture
*before* a header is read: without it the fragments of the newer types do not exist. `RawModule`
sees to both, with and without ``jitify=True``. Run it: ``python -m examples.wmma_gemm``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

import rtcompile
from examples import matrices

SOURCE = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

namespace wmma = nvcuda::wmma;
using tf32 = wmma::precision::tf32;

template <int M, int N, int K, typename StoredType, typename SumType>
struct Fragments {
    static constexpr int m = M, n = N, k = K;
    using Stored = StoredType;
    using Sum = SumType;
};
template <typename T> struct Shape : Fragments<16, 16, 16, T, float> {};
template <> struct Shape<tf32> : Fragments<16, 16, 8, float, float> {};
template <> struct Shape<signed char> : Fragments<16, 16, 16, signed char, int> {};
template <> struct Shape<double> : Fragments<8, 8, 4, double, double> {};

// A piece of a row-major matrix, with zeros beyond the edge: that makes every size valid,
// and every alignment, since WMMA itself then reads nothing but shared memory.
template <int Rows, int Columns, typename T>
__device__ void load(T* tile, const T* matrix, int row, int column, int rows, int columns) {
    for (int i = threadIdx.x; i < Rows * Columns; i += blockDim.x) {
        const int r = row + i / Columns, c = column + i % Columns;
        tile[i] = r < rows && c < columns ? matrix[(long long)r * columns + c] : T(0);
    }
}

// Tensor cores read 19 of a float's 32 bits; rounding beats the truncation they would do.
template <typename Fragment> __device__ void round_to_tf32(Fragment& fragment) {
    for (int i = 0; i < fragment.num_elements; ++i)
        fragment.x[i] = wmma::__float_to_tf32(fragment.x[i]);
}
template <typename T> constexpr bool is_tf32 = false;
template <> constexpr bool is_tf32<tf32> = true;

// c[m, n] = a[m, k] @ b[k, n], all row-major. Four warps make a 2 x 2 square of fragments. The grid is
// one-dimensional, since a second dimension would end at 65,535 blocks.
template <typename T>
__global__ void __launch_bounds__(128)
gemm(const typename Shape<T>::Stored* a, const typename Shape<T>::Stored* b,
     typename Shape<T>::Sum* c, int m, int n, int k) {
    using S = Shape<T>;
    using Sum = typename S::Sum;
    // One contiguous tile per fragment, since WMMA wants each to start at a multiple of 32 bytes.
    __shared__ __align__(32) typename S::Stored a_tile[2][S::m * S::k], b_tile[2][S::k * S::n];
    __shared__ __align__(32) Sum c_tile[4][S::m * S::n];

    wmma::fragment<wmma::matrix_a, S::m, S::n, S::k, T, wmma::row_major> a_fragment;
    wmma::fragment<wmma::matrix_b, S::m, S::n, S::k, T, wmma::row_major> b_fragment;
    wmma::fragment<wmma::accumulator, S::m, S::n, S::k, Sum> sum;
    wmma::fill_fragment(sum, Sum(0));

    const int warp = threadIdx.x / 32, down = warp / 2, across = warp % 2;
    const int across_all = (n + 2 * S::n - 1) / (2 * S::n);
    const int row = blockIdx.x / across_all * 2 * S::m, column = blockIdx.x % across_all * 2 * S::n;
    for (int inner = 0; inner < k; inner += S::k) {
        for (int i = 0; i < 2; ++i) {
            load<S::m, S::k>(a_tile[i], a, row + i * S::m, inner, m, k);
            load<S::k, S::n>(b_tile[i], b, inner, column + i * S::n, k, n);
        }
        __syncthreads();
        wmma::load_matrix_sync(a_fragment, a_tile[down], S::k);
        wmma::load_matrix_sync(b_fragment, b_tile[across], S::n);
        if constexpr (is_tf32<T>) {
            round_to_tf32(a_fragment);
            round_to_tf32(b_fragment);
        }
        wmma::mma_sync(sum, a_fragment, b_fragment, sum);
        __syncthreads();
    }

    wmma::store_matrix_sync(c_tile[warp], sum, S::n, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x % 32; i < S::m * S::n; i += 32) {
        const int r = row + down * S::m + i / S::n, s = column + across * S::n + i % S::n;
        if (r < m && s < n) c[(long long)r * n + s] = c_tile[warp][i];
    }
}
"""
OPTIONS = ("-std=c++17",)


@dataclass(frozen=True)
class Operand:
    """One row of what WMMA multiplies: the kernel, its arrays, and where it exists."""

    expression: str
    stored: str  # NumPy's name of the operands' type
    sums: str
    block: int  # rows and columns of the result per thread block
    capability: tuple[int, int]  # the first GPUs that have it
    tolerance: float  # of the relative error against float64


OPERANDS = {
    "float16": Operand("gemm<half>", "float16", "float32", 32, (7, 0), 1e-5),
    # NumPy has no bfloat16: its bits travel as uint16.
    "bfloat16": Operand("gemm<__nv_bfloat16>", "uint16", "float32", 32, (8, 0), 1e-5),
    "tf32": Operand("gemm<tf32>", "float32", "float32", 32, (8, 0), 1e-3),
    "int8": Operand("gemm<signed char>", "int8", "int32", 32, (7, 2), 0.0),
    "float64": Operand("gemm<double>", "float64", "float64", 16, (8, 0), 1e-14),
}
NAME_EXPRESSIONS = tuple(operand.expression for operand in OPERANDS.values())


def compile_only(arch: str = "sm_90a") -> rtcompile.ObjectCode:
    """Compile every kernel for `arch`, on any machine: no GPU is needed."""
    return rtcompile.compile(
        SOURCE, options=OPTIONS, arch=arch, name_expressions=NAME_EXPRESSIONS, name="wmma_gemm.cu"
    )


def load(*, jitify: bool = False) -> rtcompile.RawModule:
    """Return the module; it is compiled for the current device when a kernel is first wanted."""
    return rtcompile.RawModule(
        code=SOURCE, options=OPTIONS, name_expressions=NAME_EXPRESSIONS, jitify=jitify
    )


def matmul(a: Any, b: Any, operand: str, module: rtcompile.RawModule) -> Any:
    """Return ``a @ b`` for two-dimensional, C-contiguous CuPy arrays of any size.

    Raises
    ------
    ValueError
        Wrong dtypes, shapes or strides, or a device without these tensor cores; nothing is launched.
    """
    import cupy as cp

    if operand not in OPERANDS:
        raise ValueError(f"operand must be one of {(*OPERANDS,)}, not {operand!r}")
    kind = OPERANDS[operand]
    for name, array in (("a", a), ("b", b)):
        if array.ndim != 2 or array.dtype != kind.stored:
            raise ValueError(
                f"{name} must be a matrix of {kind.stored}, not {array.ndim}-d {array.dtype}"
            )
        matrices.require_contiguous(name, array)
    (m, k), (rows, n) = a.shape, b.shape
    if k != rows or 0 in (m, n, k):
        raise ValueError(f"cannot multiply {a.shape} by {b.shape}")
    capability = tuple(map(int, divmod(int(cp.cuda.Device().compute_capability), 10)))
    if capability < kind.capability:
        raise ValueError(
            f"{operand} tensor cores need compute capability {kind.capability}; this GPU: {capability}"
        )
    c = cp.empty((m, n), kind.sums)
    blocks = math.ceil(m / kind.block) * math.ceil(n / kind.block)
    kernel = module.get_function(kind.expression)
    kernel((blocks,), (128,), (a, b, c, np.int32(m), np.int32(n), np.int32(k)))
    return c


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """Round finite float32 to the nearest bfloat16, ties to even; return its bits as uint16."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """Return bfloat16 bits as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def random_operand(rng: np.random.Generator, operand: str, shape: tuple[int, int]) -> np.ndarray:
    """Return random values of an operand's stored type."""
    if operand == "int8":
        return rng.integers(-128, 128, shape, dtype=np.int8)
    values = rng.standard_normal(shape)
    return to_bfloat16(values) if operand == "bfloat16" else values.astype(OPERANDS[operand].stored)


def check(cp: Any) -> dict[str, float]:
    """Compare every operand type with NumPy's float64; return the relative error of each.

    Raises
    ------
    AssertionError
        An error above its tolerance.
    """
    rng = np.random.default_rng()
    errors = {}
    for jitify in (False, True):
        module = load(jitify=jitify)
        for operand, kind in OPERANDS.items():
            for m, n, k in ((64, 64, 64), (131, 77, 53), (1, 1, 1)):
                a, b = (random_operand(rng, operand, shape) for shape in ((m, k), (k, n)))
                got = matmul(cp.asarray(a), cp.asarray(b), operand, module).get()
                if operand == "bfloat16":
                    a, b = from_bfloat16(a), from_bfloat16(b)
                expected = a.astype(np.float64) @ b.astype(np.float64)
                error = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
                case = f"{operand} {m}x{n}x{k}" + (" jitify" if jitify else "")
                assert error <= kind.tolerance, f"{case}: relative error {error:.2e}"
                errors[case] = error
    return errors


if __name__ == "__main__":
    from examples._main import main

    main(compile_only, check)
