"""CUTLASS 3.x itself at run time: `GemmUniversal` from the CollectiveBuilder, built by NVRTC.

A CUTLASS program has a host half, which turns arguments into kernel parameters and needs nvcc and a
C++ compiler. Here it is replaced by a one-thread kernel, ``plan``: it makes the parameters on the
device, all but the tensor maps, which only the driver can encode; Python encodes those and puts
them where the plan says. The tile, the cluster and the schedule below can be changed freely. Needs
the CUTLASS headers (``pip install nvidia-cutlass``). Run it: ``python -m examples.cutlass_gemm``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

import rtcompile
from examples import matrices, sm90_gemm

SOURCE = r"""
#include <algorithm>
#include <type_traits>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

using namespace cute;
using cutlass::layout::ColumnMajor;
using cutlass::layout::RowMajor;

// ---- The code of a CUTLASS program, unchanged ----
using TileShape = Shape<_128, _256, _64>;
using ClusterShape = Shape<_2, _1, _1>;
template <class T, class OrderB>
struct Gemm {
    using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, TileShape, ClusterShape,
        cutlass::epilogue::collective::EpilogueTileAuto, float, float,
        void, RowMajor, 8, T, RowMajor, 8,
        cutlass::epilogue::TmaWarpSpecializedCooperative>::CollectiveOp;
    using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
        cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, T, RowMajor, 8, T, OrderB, 8, float,
        TileShape, ClusterShape,
        cutlass::gemm::collective::StageCountAutoCarveout<sizeof(typename Epilogue::SharedStorage)>,
        cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;
    using Kernel = cutlass::gemm::kernel::GemmUniversal<
        Shape<int, int, int, int>, Mainloop, Epilogue, cutlass::gemm::PersistentScheduler>;
};

template <class T, class OrderB>
__global__ void
__cluster_dims__(size<0>(ClusterShape{}), size<1>(ClusterShape{}), size<2>(ClusterShape{}))
__launch_bounds__(Gemm<T, OrderB>::Kernel::MaxThreadsPerBlock, 1)
gemm(const __grid_constant__ typename Gemm<T, OrderB>::Kernel::Params params) {
    extern __shared__ char shared[];
    typename Gemm<T, OrderB>::Kernel{}(params, shared);
}

// ---- What its host half would do ----
struct TensorMapPlace { int offset, box[3]; };  // where in Params, and what one copy moves
template <class Kernel>
struct Plan {
    int params_bytes, threads, shared_bytes, grid[3];
    TensorMapPlace a, b, d;
    alignas(128) typename Kernel::Params params;
};

// The box of cute::make_tma_copy_desc: the copy's own, shared out among the blocks of a multicast.
template <class Op, class Bits, class Aux, class T, class Layout, class Tiler>
__device__ TensorMapPlace
place(const TiledCopy<Copy_Atom<Copy_Traits<Op, Bits, Aux>, T>, Layout, Tiler>& copy, int blocks,
      const void* params) {
    using Modes = remove_cvref_t<typename Aux::TmaGmemBasis>;
    TensorMapPlace result{int((const char*)copy.get_tma_descriptor() - (const char*)params),
                          {size<0>(Modes{}), size<1>(Modes{}), size<2>(Modes{})}};
    for (int i = 2; blocks > 1; --i) {
        const int whole = result.box[i];
        result.box[i] = ceil_div(whole, blocks);
        blocks = ceil_div(blocks, whole);
    }
    return result;
}

template <class T, class OrderB>
__global__ void
plan(Plan<typename Gemm<T, OrderB>::Kernel>* plan, int m, int n, int k, int multiprocessors) {
    using G = Gemm<T, OrderB>;
    using Kernel = typename G::Kernel;
    using Scheduler = typename Kernel::TileScheduler;
    const Shape<int, int, int, int> shape{m, n, k, 1};
    const cutlass::KernelHardwareInfo hardware{0, multiprocessors};
    typename Scheduler::Arguments scheduling{};
    scheduling.max_swizzle_size = 8;  // columns of clusters walked together, for L2's sake
    const auto schedule = Scheduler::to_underlying_arguments(
        shape, TileShape{}, ClusterShape{}, hardware, scheduling, nullptr);

    // Null pointers: Params contains the operands' addresses only in the tensor maps.
    const auto& params = plan->params = {
        cutlass::gemm::GemmUniversalMode::kGemm, shape,
        G::Mainloop::to_underlying_arguments(shape, {}, nullptr),
        G::Epilogue::to_underlying_arguments(shape, {}, nullptr), hardware, schedule, nullptr};
    const dim3 grid = Kernel::get_grid_shape(params);
    plan->params_bytes = sizeof params;
    plan->threads = Kernel::MaxThreadsPerBlock;
    plan->shared_bytes = Kernel::SharedStorageSize;
    plan->grid[0] = grid.x, plan->grid[1] = grid.y, plan->grid[2] = grid.z;
    plan->a = place(params.mainloop.tma_load_a, size<1>(ClusterShape{}), &params);
    plan->b = place(params.mainloop.tma_load_b, size<0>(ClusterShape{}), &params);
    plan->d = place(params.epilogue.tma_store_d, 1, &params);
}
"""
OPTIONS = (
    "-std=c++17",
    "-DNDEBUG",
    # The scheduler divides by multiplying with a 128-bit reciprocal, which it makes where it is
    # initialised. CUTLASS expects a host there: on a device its 128-bit division is a breakpoint, which
    # ends the context, unless an option declares that the compiler has such a type.
    "--device-int128",
    "-DCUTLASS_UINT128_NATIVE",
    # An unused variable in CUTLASS, of the half that NVRTC does not see.
    "--diag-suppress=177",
)
TYPES = {"float16": "cutlass::half_t", "bfloat16": "cutlass::bfloat16_t"}

_PLACE = np.dtype([("offset", "i4"), ("box", "i4", 3)])
_PLAN = np.dtype(
    [
        ("params_bytes", "i4"),
        ("threads", "i4"),
        ("shared_bytes", "i4"),
        ("grid", "i4", 3),
        *((operand, _PLACE) for operand in ("a", "b", "out")),
    ]
)
_PARAMS_AT, _PLAN_BYTES = 128, 4096


def name_expressions(dtype: str, order: str) -> tuple[str, str]:
    """Return the kernel and its plan for a dtype and the order of b."""
    arguments = f"<{TYPES[dtype]}, {order}>"
    return "gemm" + arguments, "plan" + arguments


NAME_EXPRESSIONS = name_expressions("float16", "RowMajor")


def compile_only(arch: str = "sm_90a") -> rtcompile.ObjectCode:
    """Compile one instance for `arch`, on any machine: no GPU is needed. Takes half a minute."""
    return rtcompile.compile(
        SOURCE,
        options=OPTIONS,
        arch=arch,
        name_expressions=NAME_EXPRESSIONS,
        name="cutlass_gemm.cu",
    )


@functools.cache
def load(dtype: str, order: str) -> rtcompile.RawModule:
    """Return a module per dtype and order of b, so each instance is compiled only if it is used."""
    return rtcompile.RawModule(
        code=SOURCE, options=OPTIONS, name_expressions=name_expressions(dtype, order)
    )


@functools.lru_cache
def _plan(
    dtype: str, order: str, shape: tuple[int, int, int], device: int
) -> tuple[np.void, bytes]:
    """Run the plan kernel; return its results and the bytes of Params without tensor maps."""
    import cupy as cp

    kernel = load(dtype, order).get_function(name_expressions(dtype, order)[1])
    buffer = cp.zeros(_PLAN_BYTES, cp.uint8)
    multiprocessors = cp.cuda.Device(device).attributes["MultiProcessorCount"]
    kernel((1,), (1,), (buffer, *map(np.int32, (*shape, multiprocessors))))
    data = buffer.get()
    plan = data[: _PLAN.itemsize].view(_PLAN)[0]
    if not 0 < plan["params_bytes"] <= _PLAN_BYTES - _PARAMS_AT:
        raise RuntimeError(
            f"according to the plan kernel, Params takes {plan['params_bytes']} bytes"
        )
    return plan, data[_PARAMS_AT:][: plan["params_bytes"]].tobytes()


def bind(a: Any, b: Any, out: Any) -> Callable[[], None]:
    """Return what launches ``out = a @ b``; see `examples.sm90_gemm.bind`."""
    import cupy as cp

    left, right = sm90_gemm.operands(a, b)
    (m, k), n = left.shape, right.shape[1]
    product = sm90_gemm.result("out", out, left, n)
    order = "RowMajor" if right.row_major else "ColumnMajor"
    with cp.cuda.Device(left.device):
        plan, params = _plan(left.dtype, order, (m, n, k), left.device)
        kernel = load(left.dtype, order).get_function(name_expressions(left.dtype, order)[0])
        shared = int(plan["shared_bytes"])
        kernel.max_dynamic_shared_size_bytes = shared
    data = bytearray(params)
    for name, matrix, array in (("a", left, a), ("b", right, b), ("out", product, out)):
        offset, box = plan[name]
        box = [int(extent) for extent in box[::-1]]  # CUTLASS counts the contiguous elements first
        data[offset : offset + 128] = sm90_gemm.tensor_map(matrix, array, box).tobytes()
    arguments = (matrices.by_value(bytes(data)),)
    grid, block = tuple(map(int, plan["grid"])), (int(plan["threads"]),)

    def launch() -> None:
        with matrices.on_stream_of(a, left.device):
            kernel(grid, block, arguments, shared_mem=shared)

    return launch


def matmul(a: Any, b: Any, out: Any = None) -> Any:
    """Return ``a @ b``, in `out` or in a new array; see `examples.sm90_gemm.matmul`."""
    return sm90_gemm.matmul(a, b, out, bind=bind)


def check(cp: Any) -> dict[str, float]:
    """Compare with float64 products as `examples.sm90_gemm.check` does."""
    return sm90_gemm.check(cp, matmul)


if __name__ == "__main__":
    from examples._main import main

    main(compile_only, check, archs=("sm_90a",))
