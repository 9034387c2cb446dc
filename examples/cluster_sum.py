"""Two blocks that read each other's shared memory, launched with a cluster size chosen at run time.

`kernel.launch` has arguments that CuPy's launch lacks: here ``cluster=``, and ``programmatic=``, which sets a
kernel up while the previous one still runs. Run it: ``python -m examples.cluster_sum``.
"""

from __future__ import annotations

import functools
from typing import Any

import rtcompile

SOURCE = r"""
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

// out[i] = the sum of x[i] over the blocks of a cluster: each block has a part in shared memory.
template <class T> __global__ void sum_over_cluster(const T* x, T* out) {
    __shared__ T part[256];
    auto cluster = cg::this_cluster();
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    asm volatile("griddepcontrol.wait;" ::: "memory");  // what the kernel ahead wrote is there now
    part[threadIdx.x] = x[at];
    cluster.sync();
    T sum = 0;
    for (unsigned rank = 0; rank < cluster.num_blocks(); rank++)
        sum += cluster.map_shared_rank(part, rank)[threadIdx.x];
    cluster.sync();  // no block ends while another reads its shared memory
    out[at] = sum;
}
"""
NAME_EXPRESSIONS = ("sum_over_cluster<int>",)
THREADS = 256


def compile_only(arch: str = "sm_90a") -> rtcompile.ObjectCode:
    """Compile every kernel for `arch`, on any machine: no GPU is needed."""
    return rtcompile.compile(
        SOURCE, arch=arch, name_expressions=NAME_EXPRESSIONS, name="cluster_sum.cu"
    )


@functools.cache
def load() -> rtcompile.RawModule:
    """Return the module; nothing is compiled before its first use."""
    return rtcompile.RawModule(code=SOURCE, name_expressions=NAME_EXPRESSIONS)


def sum_over_clusters(x: Any, blocks: int) -> Any:
    """Return for each element of `x`, 256 to a block, the sum over the blocks of its cluster.

    Parameters
    ----------
    x : cupy.ndarray
        Contiguous, int32, whole clusters of 256 elements in each block.
    blocks : int
        In a cluster: 1 to 8, and up to 16 where the device can.

    Raises
    ------
    ValueError
        `x` is of another dtype or layout; the device has no such cluster.
    """
    import cupy as cp

    if x.dtype != cp.int32 or not x.flags.c_contiguous or x.size == 0 or x.size % THREADS:
        raise ValueError(
            f"x must be contiguous int32, a multiple of {THREADS} elements; it is {x.dtype} of "
            f"shape {x.shape}, strides {x.strides}"
        )
    out = cp.empty_like(x)
    kernel = load().get_function(NAME_EXPRESSIONS[0])
    kernel.launch(x.size // THREADS, THREADS, (x, out), cluster=blocks, programmatic=True)
    return out


def check(cp: Any) -> dict[str, object]:
    """Compare sums over clusters of one to sixteen blocks with NumPy's; return the errors."""
    found: dict[str, object] = {}
    for blocks in (1, 2, 8, 16):
        x = cp.arange(32 * THREADS, dtype=cp.int32)
        sums = x.get().reshape(-1, blocks, THREADS).sum(1, keepdims=True).repeat(blocks, 1)
        wrong = int((sum_over_clusters(x, blocks).get() != sums.reshape(-1)).sum())
        if wrong:
            raise AssertionError(f"clusters of {blocks}: {wrong} sums are wrong")
        found[f"clusters of {blocks}, wrong sums"] = wrong
    return found


if __name__ == "__main__":
    from examples._main import main

    main(compile_only, check, archs=("sm_90a", "sm_100a"))
