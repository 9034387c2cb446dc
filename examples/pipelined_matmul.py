"""A multi-stage matrix product whose asynchronous copies are legal for 1-, 2-, 4- and 8-byte types.

``cp.async`` copies 4, 8 or 16 aligned bytes, so a pipeline written for floats does not compile for
halves, and one that compiles faults on a misaligned view. ``rtcompile/async_copy.cuh``, which is
always in the search path, chooses the width per type and alignment at compile time and falls back
to plain loads; this kernel is written once for all. Run it: ``python -m examples.pipelined_matmul``.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

import rtcompile
from examples import matrices

SOURCE = r"""
#include <cuda_fp16.h>
#include <rtcompile/async_copy.cuh>

constexpr int tile = 32, depth = 16, threads = 64;  // each thread makes 4 x 4 results

template <class T> struct Traits { using Sum = T; };
template <> struct Traits<half> { using Sum = float; };
template <> struct Traits<signed char> { using Sum = int; };
template <class T> using Sum = typename Traits<T>::Sum;

// c[m, n] = a[m, k] @ b[k, n], row-major; rows of a and b start at multiples of `Alignment` bytes. The
// grid is one-dimensional, since a second dimension would end at 65,535 blocks.
template <class T, int Stages, int Alignment>
__global__ void __launch_bounds__(threads)
matmul(const T* a, const T* b, Sum<T>* c, int m, int n, int k, int a_pitch, int b_pitch) {
    __shared__ alignas(16) T a_tile[Stages][tile * depth], b_tile[Stages][depth * tile];
    const int tiles_across = (n + tile - 1) / tile;
    const int row = blockIdx.x / tiles_across * tile, column = blockIdx.x % tiles_across * tile;
    const int down = threadIdx.x / 8 * 4, across = threadIdx.x % 8 * 4;
    const int steps = (k + depth - 1) / depth;

    // A stage is committed even past the last step: waiting counts stages.
    const auto fetch = [&](int step) {
        if (step < steps) {
            rtcompile::copy_tile_async<tile, depth, Alignment, threads>(
                a_tile[step % Stages], a, row, step * depth, m, k, a_pitch);
            rtcompile::copy_tile_async<depth, tile, Alignment, threads>(
                b_tile[step % Stages], b, step * depth, column, k, n, b_pitch);
        }
        rtcompile::commit_copies();
    };

    Sum<T> sum[4][4] = {};
    for (int step = 0; step < Stages - 1; ++step) fetch(step);
    for (int step = 0; step < steps; ++step) {
        fetch(step + Stages - 1);
        rtcompile::wait_copies<Stages - 1>();
        __syncthreads();
        const T* a_now = a_tile[step % Stages];
        const T* b_now = b_tile[step % Stages];
        for (int i = 0; i < depth; ++i)
            for (int r = 0; r < 4; ++r)
                for (int s = 0; s < 4; ++s)
                    sum[r][s] += Sum<T>(a_now[(down + r) * depth + i]) * Sum<T>(b_now[i * tile + across + s]);
        __syncthreads();  // before the next fetch overwrites this stage
    }
    for (int r = 0; r < 4; ++r)
        for (int s = 0; s < 4; ++s)
            if (row + down + r < m && column + across + s < n)
                c[(long long)(row + down + r) * n + column + across + s] = sum[r][s];
}
"""
OPTIONS = ("-std=c++17",)
TYPES = {  # NumPy's name: (CUDA's name, type of the sums, tolerance of the relative error)
    "int8": ("signed char", "int32", 0.0),
    "float16": ("half", "float32", 1e-6),
    "float32": ("float", "float32", 1e-6),
    "float64": ("double", "float64", 1e-14),
}
STAGES = (1, 2, 3, 4)


def name_expression(dtype: str, stages: int, alignment: int) -> str:
    """Return the kernel for a dtype, a number of stages and an alignment in bytes."""
    return f"matmul<{TYPES[dtype][0]}, {stages}, {alignment}>"


def alignments(dtype: str) -> tuple[int, ...]:
    """Return the alignments in bytes that make a difference, the best first."""
    itemsize = np.dtype(dtype).itemsize
    return tuple(width for width in (16, 8, 4, 2, 1) if width >= itemsize)


# Every width of every type, and every number of stages once.
NAME_EXPRESSIONS = tuple(
    dict.fromkeys(
        [
            *(name_expression(dtype, 3, width) for dtype in TYPES for width in alignments(dtype)),
            *(name_expression("float16", stages, 16) for stages in STAGES),
        ]
    )
)


def compile_only(arch: str = "sm_90a") -> rtcompile.ObjectCode:
    """Compile the kernels for `arch`, on any machine: no GPU is needed."""
    return rtcompile.compile(
        SOURCE,
        options=OPTIONS,
        arch=arch,
        name_expressions=NAME_EXPRESSIONS,
        name="pipelined_matmul.cu",
    )


@functools.cache
def load(dtype: str, stages: int) -> rtcompile.RawModule:
    """Return the kernels of a dtype and a number of stages, one per alignment."""
    return rtcompile.RawModule(
        code=SOURCE,
        options=OPTIONS,
        name_expressions=[name_expression(dtype, stages, width) for width in alignments(dtype)],
    )


def alignment(*arrays: Any) -> int:
    """Return the bytes (16 at most) that every row of every array starts at a multiple of."""
    return math.gcd(16, *(array.data.ptr for array in arrays), *(a.strides[0] for a in arrays))


def matmul(a: Any, b: Any, *, stages: int = 3) -> Any:
    """Return ``a @ b`` for CuPy matrices with contiguous rows: views that start anywhere included.

    Raises
    ------
    ValueError
        Wrong dtypes, shapes, strides or stages; nothing is launched.
    """
    import cupy as cp

    dtype = a.dtype.name
    if dtype not in TYPES or b.dtype != a.dtype:
        raise ValueError(f"a and b must be both of one of {(*TYPES,)}, not {a.dtype} and {b.dtype}")
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or 0 in a.shape + b.shape:
        raise ValueError(f"cannot multiply {a.shape} by {b.shape}")
    for name, array in (("a", a), ("b", b)):
        if array.strides[1] != array.itemsize or array.strides[0] < 0:
            raise ValueError(f"{name} has strides {array.strides}; its rows must be contiguous")
        matrices.require_countable(name, array)
    if stages not in STAGES:
        raise ValueError(f"stages must be one of {STAGES}, not {stages}")
    (m, k), n = a.shape, b.shape[1]
    c = cp.empty((m, n), TYPES[dtype][1])
    kernel = load(dtype, stages).get_function(name_expression(dtype, stages, alignment(a, b)))
    pitches = (array.strides[0] // array.itemsize for array in (a, b))
    kernel(
        (math.ceil(m / 32) * math.ceil(n / 32),),
        (64,),
        (a, b, c, *map(np.int32, (m, n, k, *pitches))),
    )
    return c


def check(cp: Any) -> dict[str, float]:
    """Compare every type, stage count and alignment with NumPy; return the relative errors.

    Raises
    ------
    AssertionError
        An error above the type's tolerance.
    """
    rng = np.random.default_rng()
    errors = {}
    for dtype, (_, sums, tolerance) in TYPES.items():
        for stages in STAGES:
            for width in alignments(dtype):
                # Rows 16 bytes apart or a multiple, the view `width` bytes into them, odd sizes.
                skip = width % 16 // np.dtype(dtype).itemsize
                a = _random(rng, dtype, (61, 96))[:, skip : skip + 77]
                b = _random(rng, dtype, (77, 80))[:, skip : skip + 53]
                a_view, b_view = (_on_device(cp, array) for array in (a, b))
                assert alignment(a_view, b_view) == width
                got = matmul(a_view, b_view, stages=stages).get().astype(np.float64)
                expected = a.astype(np.float64) @ b.astype(np.float64)
                error = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
                case = f"{dtype} -> {sums}, {stages} stages, {width}-byte rows"
                assert error <= tolerance, f"{case}: relative error {error:.2e}"
                errors[case] = error
    return errors


def _random(rng: np.random.Generator, dtype: str, shape: tuple[int, int]) -> np.ndarray:
    if dtype == "int8":
        return rng.integers(-128, 128, shape, dtype=np.int8)
    return rng.standard_normal(shape).astype(dtype)


def _on_device(cp: Any, view: np.ndarray) -> Any:
    """Copy a view with all that surrounds it, and take the same view there."""
    whole = cp.asarray(view.base)
    start = (view.ctypes.data - view.base.ctypes.data) // view.itemsize
    return whole[:, start : start + view.shape[1]]


if __name__ == "__main__":
    from examples._main import main

    main(compile_only, check)
