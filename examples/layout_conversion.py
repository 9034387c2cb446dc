"""From one register layout to another through shared memory, with the vector width proved legal.

Compilers of tile languages lower *reduce, reshape, reshape, broadcast* to this: a vector that some
threads hold in one layout is wanted by others in another, and shared scratch, possibly smaller than
the vector, is filled and read in several rounds. A vector read wider than a thread's share of a
round (``width * rounds <= values per thread``) is the classic mistake; here the layouts are CuTe
types, so the width follows from them at compile time and a scratch for which no width is legal does
not compile. Needs the CUTLASS headers. Run it: ``python -m examples.layout_conversion``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import rtcompile
from examples import matrices

SOURCE = r"""
#include <cute/tensor.hpp>

using namespace cute;

constexpr int threads = 128;

// Moves a vector of Size floats from registers in layout From to registers in layout To. A layout maps (thread, value) to an element; threads may share elements.
template <int Size, class From, class To, int Scratch>
struct Conversion {
    static constexpr int rounds = ceil_div(Size, Scratch);
    static constexpr int values = size<1>(To{});  // that a thread reads
    static_assert(rounds <= values,
                  "the scratch is too small: in some round a thread would read less than one value, "
                  "so no vector width is legal; give it at least Size / values elements");

    // Neighbouring values that are neighbouring elements too.
    static constexpr int neighbours =
        decltype(max_common_vector(get<1>(To{}), Layout<Int<values>>{}))::value;
    static constexpr int widest() {
        int width = 16 / sizeof(float);
        while (neighbours % width || Scratch % width || width * rounds > values) width /= 2;
        return width;
    }
    static constexpr int width = widest();
    using Copy = AutoVectorizingCopyWithAssumedAlignment<8 * sizeof(float) * width>;

    template <class Source, class Target>
    static __device__ void apply(const Source& source, Target& target, float* scratch) {
        CUTE_UNROLL
        for (int first = 0; first < Size; first += Scratch) {
            CUTE_UNROLL
            for (int v = 0; v < size(source); ++v) {
                const int at = From{}(threadIdx.x, v) - first;
                if (0 <= at && at < Scratch) scratch[at] = source(v);
            }
            __syncthreads();
            CUTE_UNROLL
            for (int v = 0; v < values; v += width) {
                const int at = To{}(threadIdx.x, v) - first;
                if (0 <= at && at < Scratch)
                    copy(Copy{}, make_tensor(make_smem_ptr(scratch + at), Layout<Int<width>>{}),
                         make_tensor(&target(v), Layout<Int<width>>{}));
            }
            __syncthreads();
        }
    }
};

// out[r, c] = the sum of row r of x, for every c: reduce to (Rows), reshape to (Rows / 4, 4), reshape
// to (Rows, 1), broadcast to (Rows, columns). Row-major reshapes keep each element's number, so all
// that is left of the four is one conversion of a vector.
template <int Rows, int PerThread, int Scratch>
__global__ void __launch_bounds__(threads)
broadcast_sums(const float* x, float* out, int columns) {
    __shared__ alignas(16) float scratch[Scratch];
    // Eight threads sum a row, and each gets the result; sixteen rows at a time.
    using Reduced = Layout<Shape<Shape<_8, _16>, Int<Rows / 16>>, Stride<Stride<_0, _1>, _16>>;
    // PerThread neighbouring rows a thread, the remaining threads on other columns of the same rows.
    constexpr int down = Rows / PerThread, across = threads / down;
    using Wanted = Layout<Shape<Shape<Int<down>, Int<across>>, Int<PerThread>>,
                          Stride<Stride<Int<PerThread>, _0>, _1>>;

    Tensor sums = make_tensor<float>(Int<Rows / 16>{});
    for (int v = 0; v < size(sums); ++v) {
        const float* row = x + (long long)Reduced{}(threadIdx.x, v) * columns;
        float sum = 0;
        for (int c = threadIdx.x % 8; c < columns; c += 8) sum += row[c];
        for (int lane = 4; lane > 0; lane /= 2) sum += __shfl_xor_sync(~0u, sum, lane);
        sums(v) = sum;
    }

    Tensor wanted = make_tensor<float>(Int<PerThread>{});
    Conversion<Rows, Reduced, Wanted, Scratch>::apply(sums, wanted, scratch);

    for (int v = 0; v < PerThread; ++v)
        for (int c = threadIdx.x / down; c < columns; c += across)
            out[(long long)Wanted{}(threadIdx.x, v) * columns + c] = wanted(v);
}
"""
OPTIONS = ("-std=c++17", "-DNDEBUG")

# Rows, values per thread, scratch elements: one to four rounds, the last one not always full.
CASES = tuple(
    (rows, per_thread, scratch)
    for rows in (16, 64, 256)
    for per_thread in (1, 2, 4, 8)
    for scratch in (rows, rows // 2, 3 * rows // 8, rows // 4)
    if rows // per_thread <= 128 and -(-rows // scratch) <= per_thread
)
NAME_EXPRESSIONS = tuple("broadcast_sums<{}, {}, {}>".format(*case) for case in CASES)


def compile_only(arch: str = "sm_90a") -> rtcompile.ObjectCode:
    """Compile every kernel for `arch`, on any machine: no GPU is needed."""
    return rtcompile.compile(
        SOURCE,
        options=OPTIONS,
        arch=arch,
        name_expressions=NAME_EXPRESSIONS,
        name="layout_conversion.cu",
    )


def compile_impossible(arch: str = "sm_90a") -> rtcompile.ObjectCode:
    """Request two rounds of one value per thread, which raises `rtcompile.CompileError`."""
    return rtcompile.compile(
        SOURCE, options=OPTIONS, arch=arch, name_expressions=["broadcast_sums<64, 1, 32>"]
    )


def load() -> rtcompile.RawModule:
    """Return the module; it is compiled for the current device when a kernel is first wanted."""
    return rtcompile.RawModule(code=SOURCE, options=OPTIONS, name_expressions=NAME_EXPRESSIONS)


def broadcast_sums(x: Any, per_thread: int, scratch: int, module: rtcompile.RawModule) -> Any:
    """Return a matrix of x's shape with each row's sum in all of its columns.

    Raises
    ------
    ValueError
        Rows, values per thread and scratch are none of `CASES`, or x is no C-contiguous float32
        matrix; nothing is launched.
    """
    import cupy as cp

    if x.ndim != 2 or x.dtype != np.float32:
        raise ValueError(f"x must be a matrix of float32, not {x.ndim}-d {x.dtype}")
    if x.size == 0:
        raise ValueError(f"x has shape {x.shape}, and so no elements")
    matrices.require_contiguous("x", x)
    case = (len(x), per_thread, scratch)
    if case not in CASES:
        raise ValueError(f"(rows, per_thread, scratch) must be one of CASES, not {case}")
    out = cp.empty_like(x)
    kernel = module.get_function("broadcast_sums<{}, {}, {}>".format(*case))
    kernel((1,), (128,), (x, out, np.int32(x.shape[1])))
    return out


def check(cp: Any) -> dict[str, float]:
    """Compare every case with NumPy, at an odd number of columns; return the relative errors.

    Raises
    ------
    AssertionError
        An error above that of summing floats.
    """
    rng = np.random.default_rng()
    module = load()
    columns = 77
    errors = {}
    for (rows, per_thread, scratch), expression in zip(CASES, NAME_EXPRESSIONS, strict=True):
        x = rng.standard_normal((rows, columns), dtype=np.float32)
        out = broadcast_sums(cp.asarray(x), per_thread, scratch, module)
        expected = x.astype(np.float64).sum(axis=1, keepdims=True)
        scale = np.abs(x).sum(axis=1).max()
        error = float(np.abs(out.get() - expected).max() / scale)
        assert error <= 1e-6, f"{expression}: error {error:.2e}"
        errors[expression] = error
    return errors


if __name__ == "__main__":
    from examples._main import main

    main(compile_only, check)
