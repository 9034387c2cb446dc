"""CuTe's TiledMMA and TiledCopy under NVRTC: a small fp16 matrix product, right at any size.

The important part is the epilogue: fp32 sums become fp16 in a new register tensor, and a `TiledCopy` made from the
MMA's own C layout (`make_tiled_copy_C`, `retile_S`, `partition_D`) copies them to shared memory with the kernel's
copy operation. Needs the CUTLASS headers (``pip install nvidia-cutlass``). Run it:
``python -m examples.cute_tiled_copy``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import rtcompile
from examples import matrices

SOURCE = r"""
#include <cute/tensor.hpp>

using namespace cute;

// Eight warps, one above the other: each step makes 128 x 8 results from 16 of K.
using Mma = TiledMMA<MMA_Atom<SM80_16x8x16_F32F16F16F32_TN>, Layout<Shape<_8, _1, _1>>>;
using BlockM = _128;
using BlockN = _64;
using BlockK = _32;

// Rows are 16 bytes longer than their data, so that eight in a column lie in different banks.
template <class Rows, class Columns>
using Padded = decltype(make_layout(Shape<Rows, Columns>{}, Stride<decltype(Columns{} + _8{}), _1>{}));

// A block's tile of a row-major matrix, zeros beyond its edge: right for every size.
template <class Tile>
__device__ void load(Tile&& tile, const half_t* matrix, int row, int column, int rows, int columns) {
    for (int i = threadIdx.x; i < size(tile); i += blockDim.x) {
        // Along a row first, which is how neighbouring threads read neighbouring addresses.
        const int r = i / size<1>(tile), c = i % size<1>(tile);
        const bool inside = row + r < rows && column + c < columns;
        tile(r, c) = inside ? matrix[(long long)(row + r) * columns + column + c] : half_t(0.f);
    }
}

template <class Tile>
__device__ void store(half_t* matrix, const Tile& tile, int row, int column, int rows, int columns) {
    for (int i = threadIdx.x; i < size(tile); i += blockDim.x) {
        const int r = i / size<1>(tile), c = i % size<1>(tile);
        if (row + r < rows && column + c < columns)
            matrix[(long long)(row + r) * columns + column + c] = tile(r, c);
    }
}

// c[m, n] = a[m, k] @ b[n, k]^T. Copy is what writes the results from registers to shared memory. The
// grid is one-dimensional, since a second dimension would end at 65,535 blocks.
template <class Copy>
__global__ void __launch_bounds__(size(Mma{}))
gemm(const half_t* a, const half_t* b, half_t* c, int m, int n, int k) {
    __shared__ alignas(16) half_t a_storage[cosize_v<Padded<BlockM, BlockK>>];
    __shared__ alignas(16) half_t b_storage[cosize_v<Padded<BlockN, BlockK>>];
    __shared__ alignas(16) half_t c_storage[cosize_v<Padded<BlockM, BlockN>>];
    Tensor a_tile = make_tensor(make_smem_ptr(a_storage), Padded<BlockM, BlockK>{});
    Tensor b_tile = make_tensor(make_smem_ptr(b_storage), Padded<BlockN, BlockK>{});
    Tensor c_tile = make_tensor(make_smem_ptr(c_storage), Padded<BlockM, BlockN>{});

    Mma mma;
    ThrMMA thread_mma = mma.get_slice(threadIdx.x);
    Tensor a_registers = thread_mma.partition_fragment_A(a_tile);
    Tensor b_registers = thread_mma.partition_fragment_B(b_tile);
    Tensor sums = partition_fragment_C(mma, Shape<BlockM, BlockN>{});
    clear(sums);

    const int across = ceil_div(n, BlockN{});
    const int row = blockIdx.x / across * BlockM{}, column = blockIdx.x % across * BlockN{};
    for (int inner = 0; inner < k; inner += BlockK{}) {
        load(a_tile, a, row, inner, m, k);
        load(b_tile, b, column, inner, n, k);
        __syncthreads();
        // One element after the other: `copy` would look for the widest access, at compile time, and a third
        // of that time.
        transform(thread_mma.partition_A(a_tile), a_registers, identity{});
        transform(thread_mma.partition_B(b_tile), b_registers, identity{});
        gemm(mma, a_registers, b_registers, sums);
        __syncthreads();
    }

    // fp32 sums to fp16, into a tensor that owns its registers.
    Tensor results = make_tensor_like<half_t>(sums);
    transform(sums, results, [](float sum) { return half_t(sum); });

    TiledCopy c_copy = make_tiled_copy_C(Copy_Atom<Copy, half_t>{}, mma);
    ThrCopy thread_copy = c_copy.get_slice(threadIdx.x);
    copy(c_copy, thread_copy.retile_S(results), thread_copy.partition_D(c_tile));
    __syncthreads();
    store(c, c_tile, row, column, m, n);
}
"""
# NDEBUG leaves CuTe's device asserts out: they cost registers, and time where nothing is wrong.
OPTIONS = ("-std=c++17", "-DNDEBUG")
NAME_EXPRESSIONS = (
    "gemm<DefaultCopy>",
    "gemm<UniversalCopy<half_t>>",
    "gemm<UniversalCopy<uint32_t>>",  # two results at once, as neighbours in a row of C are
)
BLOCK_M, BLOCK_N = 128, 64


def compile_only(arch: str = "sm_90a") -> rtcompile.ObjectCode:
    """Compile every kernel for `arch`, on any machine: no GPU is needed."""
    return rtcompile.compile(
        SOURCE,
        options=OPTIONS,
        arch=arch,
        name_expressions=NAME_EXPRESSIONS,
        name="cute_tiled_copy.cu",
    )


def load() -> rtcompile.RawModule:
    """Return the module; it is compiled for the current device when a kernel is first wanted."""
    return rtcompile.RawModule(code=SOURCE, options=OPTIONS, name_expressions=NAME_EXPRESSIONS)


def matmul(a: Any, b: Any, expression: str, module: rtcompile.RawModule) -> Any:
    """Return ``a @ b.T`` for C-contiguous float16 CuPy matrices of any size.

    Raises
    ------
    ValueError
        A wrong dtype, shape or stride, or a GPU older than sm_80; nothing is launched.
    """
    import cupy as cp

    for name, array in (("a", a), ("b", b)):
        if array.ndim != 2 or array.dtype != np.float16:
            raise ValueError(
                f"{name} must be a matrix of float16, not {array.ndim}-d {array.dtype}"
            )
        matrices.require_contiguous(name, array)
    (m, k), (n, inner) = a.shape, b.shape
    if k != inner or 0 in (m, n, k):
        raise ValueError(f"cannot multiply {a.shape} by the transpose of {b.shape}")
    if int(cp.cuda.Device().compute_capability) < 80:
        raise ValueError("SM80_16x8x16 needs compute capability 8.0 or newer")
    c = cp.empty((m, n), np.float16)
    blocks = math.ceil(m / BLOCK_M) * math.ceil(n / BLOCK_N)
    kernel = module.get_function(expression)
    kernel((blocks,), (256,), (a, b, c, np.int32(m), np.int32(n), np.int32(k)))
    return c


def check(cp: Any) -> dict[str, float]:
    """Compare every copy operation with NumPy's float64; return the relative error of each.

    Raises
    ------
    AssertionError
        An error above that of rounding the result to float16.
    """
    rng = np.random.default_rng()
    module = load()
    errors = {}
    for expression in NAME_EXPRESSIONS:
        for m, n, k in ((256, 128, 64), (131, 77, 53), (1, 1, 1)):
            a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (n, k)))
            got = matmul(cp.asarray(a), cp.asarray(b), expression, module).get().astype(np.float64)
            expected = a.astype(np.float64) @ b.astype(np.float64).T
            error = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
            case = f"{expression} {m}x{n}x{k}"
            assert error <= 5e-4, f"{case}: relative error {error:.2e}"
            errors[case] = error
    return errors


if __name__ == "__main__":
    from examples._main import main

    main(compile_only, check)
