"""Sums of rows, four ways: CUB, cooperative groups, a CUDA pipeline, and one across the whole grid.

All of it is what CUDA C++ offers for the purpose, without nvcc: `cub::BlockReduce`, `cg::reduce`,
`cuda::pipeline` and `cuda::barrier` with `cuda::std`, and a grid-wide barrier in a cooperative
launch. Run it: ``python -m examples.reductions``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import rtcompile
from examples import matrices

SOURCE = r"""
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cub/block/block_reduce.cuh>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/std/array>
#include <cuda/std/functional>

namespace cg = cooperative_groups;
constexpr int threads = 256;

template <class T>
__device__ T sum_of_mine(const T* row, int columns) {
    T sum{};
    for (int c = threadIdx.x; c < columns; c += threads) sum += row[c];
    return sum;
}

template <class T>
__global__ void __launch_bounds__(threads) sum_by_cub(const T* x, T* sums, int columns) {
    using Reduce = cub::BlockReduce<T, threads>;
    __shared__ typename Reduce::TempStorage storage;
    const T* row = x + (long long)blockIdx.x * columns;
    const T sum = Reduce(storage).Sum(sum_of_mine(row, columns));
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class T>
__global__ void __launch_bounds__(threads) sum_by_groups(const T* x, T* sums, int columns) {
    __shared__ T partial[threads / 32];
    const auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    const T* row = x + (long long)blockIdx.x * columns;
    const T mine = cg::reduce(warp, sum_of_mine(row, columns), cg::plus<T>());
    if (warp.thread_rank() == 0) partial[warp.meta_group_rank()] = mine;
    cg::this_thread_block().sync();
    if (warp.meta_group_rank() == 0) {
        const T part = warp.thread_rank() < threads / 32 ? partial[warp.thread_rank()] : T{};
        const T sum = cg::reduce(warp, part, cg::plus<T>());
        if (warp.thread_rank() == 0) sums[blockIdx.x] = sum;
    }
}

// Two chunks of the row in flight while a third is summed; the results meet at a barrier.
template <class T>
__global__ void __launch_bounds__(threads) sum_by_pipeline(const T* x, T* sums, int columns) {
    constexpr int stages = 3;
    __shared__ cuda::std::array<T, threads> chunks[stages];
    __shared__ T partial[threads];
// Their constructors do not run in shared memory: init and make_pipeline are what starts them.
#pragma nv_diag_suppress static_var_with_dynamic_init
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, stages> state;

    const auto block = cg::this_thread_block();
    if (block.thread_rank() == 0) init(&barrier, threads);
    auto pipeline = cuda::make_pipeline(block, &state);

    const T* row = x + (long long)blockIdx.x * columns;
    const int whole = (columns + threads - 1) / threads;
    T sum{};
    for (int fetched = 0, chunk = 0; chunk < whole; ++chunk) {
        for (; fetched < whole && fetched < chunk + stages; ++fetched) {
            pipeline.producer_acquire();
            const int first = fetched * threads, count = min(threads, columns - first);
            cuda::memcpy_async(block, chunks[fetched % stages].data(), row + first,
                               sizeof(T) * count, pipeline);
            pipeline.producer_commit();
        }
        pipeline.consumer_wait();
        const int at = chunk * threads + threadIdx.x;
        if (at < columns) sum = cuda::std::plus<>()(sum, chunks[chunk % stages][threadIdx.x]);
        pipeline.consumer_release();
    }

    partial[threadIdx.x] = sum;
    for (int half = threads / 2; half > 0; half /= 2) {
        barrier.arrive_and_wait();
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}

// x /= its sum: all blocks must have added theirs before any divides.
extern "C" __global__ void __launch_bounds__(threads) normalise(double* x, double* sum, int size) {
    const auto grid = cg::this_grid();
    double mine = 0;
    for (int i = grid.thread_rank(); i < size; i += grid.size()) mine += x[i];
    mine = cg::reduce(cg::tiled_partition<32>(cg::this_thread_block()), mine, cg::plus<double>());
    if (threadIdx.x % 32 == 0) atomicAdd(sum, mine);
    grid.sync();
    for (int i = grid.thread_rank(); i < size; i += grid.size()) x[i] /= *sum;
}
"""
OPTIONS = ("-std=c++17",)
TYPES = {"float32": "float", "float64": "double", "int32": "int"}
METHODS = ("sum_by_cub", "sum_by_groups", "sum_by_pipeline")
NAME_EXPRESSIONS = (
    *(f"{method}<{type_}>" for method in METHODS for type_ in TYPES.values()),
    "normalise",
)


def compile_only(arch: str = "sm_90a") -> rtcompile.ObjectCode:
    """Compile every kernel for `arch`, on any machine: no GPU is needed."""
    return rtcompile.compile(
        SOURCE, options=OPTIONS, arch=arch, name_expressions=NAME_EXPRESSIONS, name="reductions.cu"
    )


def load(**arguments: Any) -> rtcompile.RawModule:
    """Return the module; it is compiled for the current device when a kernel is first wanted."""
    return rtcompile.RawModule(
        code=SOURCE, options=OPTIONS, name_expressions=NAME_EXPRESSIONS, **arguments
    )


def row_sums(x: Any, method: str, module: rtcompile.RawModule) -> Any:
    """Return the sum of each row of a C-contiguous CuPy matrix by one of `METHODS`.

    Raises
    ------
    ValueError
        Another dtype, or rows that are not contiguous; nothing is launched.
    """
    import cupy as cp

    if x.ndim != 2 or x.dtype.name not in TYPES:
        raise ValueError(f"x must be a matrix of one of {(*TYPES,)}, not {x.ndim}-d {x.dtype}")
    if x.size == 0:
        raise ValueError(f"x has shape {x.shape}, and so no elements")
    matrices.require_contiguous("x", x)
    if method not in METHODS:
        raise ValueError(f"method must be one of {METHODS}, not {method!r}")
    sums = cp.empty(len(x), x.dtype)
    kernel = module.get_function(f"{method}<{TYPES[x.dtype.name]}>")
    kernel((len(x),), (256,), (x, sums, np.int32(x.shape[1])))
    return sums


def normalise(x: Any, module: rtcompile.RawModule) -> None:
    """Divide a contiguous float64 vector by its sum, in place; `module` is ``load(enable_cooperative_groups=True)``.

    Raises
    ------
    ValueError
        Another dtype, or a vector that is empty or not contiguous; nothing is launched.
    """
    import cupy as cp

    if x.ndim != 1 or x.dtype != np.float64:
        raise ValueError(f"x must be a vector of float64, not {x.ndim}-d {x.dtype}")
    if x.size == 0:
        raise ValueError(f"x has shape {x.shape}, and so no elements")
    matrices.require_contiguous("x", x)
    kernel = module.get_function("normalise")
    kernel((64,), (256,), (x, cp.zeros(1), np.int32(x.size)))


def check(cp: Any) -> dict[str, float]:
    """Compare every method and type with NumPy at odd sizes; return the relative errors.

    Raises
    ------
    AssertionError
        An error above that of summing in the type.
    """
    rng = np.random.default_rng()
    module = load()
    errors = {}
    for method in METHODS:
        for dtype in TYPES:
            for rows, columns in ((37, 1001), (3, 1), (1, 70000)):
                x = (1000 * rng.standard_normal((rows, columns))).astype(dtype)
                got = row_sums(cp.asarray(x), method, module).get().astype(np.float64)
                exact = x.astype(np.float64)
                error = float(
                    np.abs(got - exact.sum(axis=1)).max() / np.abs(exact).sum(axis=1).max()
                )
                tolerance = {"float32": 1e-6, "float64": 1e-14, "int32": 0.0}[dtype]
                case = f"{method} {dtype} {rows}x{columns}"
                assert error <= tolerance, f"{case}: error {error:.2e}"
                errors[case] = error

    x = rng.random(100_003)
    on_device = cp.asarray(x)
    normalise(on_device, load(enable_cooperative_groups=True))
    error = float(np.abs(on_device.get() * x.sum() - x).max())
    assert error <= 1e-12, f"normalise: error {error:.2e}"
    errors["normalise"] = error
    return errors


if __name__ == "__main__":
    from examples._main import main

    main(compile_only, check)
