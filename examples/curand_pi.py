"""Random numbers in a kernel with cuRAND's device functions: pi by throwing darts.

The header is another package than the runtime's (``pip install nvidia-curand``, for CUDA 12
``nvidia-curand-cu12``). Run it: ``python -m examples.curand_pi``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import rtcompile

SOURCE = r"""
#include <curand_kernel.h>

extern "C" __global__ void throw_darts(unsigned long long seed, int per_thread, unsigned long long* hits) {
    curandStatePhilox4_32_10_t state;  // counter-based: its start costs nothing, unlike XORWOW's
    curand_init(seed, blockIdx.x * blockDim.x + threadIdx.x, 0, &state);
    unsigned inside = 0;
    for (int i = 0; i < per_thread; i += 2) {
        const float4 u = curand_uniform4(&state);
        inside += (u.x * u.x + u.y * u.y <= 1) + (u.z * u.z + u.w * u.w <= 1);
    }
    atomicAdd(hits, inside);
}
"""
OPTIONS = ("-std=c++17",)
NAME_EXPRESSIONS = ("throw_darts",)
BLOCKS, THREADS, PER_THREAD = 256, 256, 1024


def compile_only(arch: str = "sm_90a") -> rtcompile.ObjectCode:
    """Compile for `arch`, on any machine: no GPU is needed."""
    return rtcompile.compile(
        SOURCE, options=OPTIONS, arch=arch, name_expressions=NAME_EXPRESSIONS, name="curand_pi.cu"
    )


def estimate(seed: int, blocks: int = BLOCKS, per_thread: int = PER_THREAD) -> float:
    """Return pi, more or less; the same for the same seed.

    Raises
    ------
    ValueError
        An odd `per_thread`: darts are thrown in pairs.
    """
    import cupy as cp

    if per_thread < 2 or per_thread % 2 or blocks < 1:
        raise ValueError(
            f"blocks must be positive, per_thread positive and even, not {blocks} and {per_thread}"
        )
    kernel = rtcompile.RawKernel(SOURCE, "throw_darts", OPTIONS)
    hits = cp.zeros(1, np.uint64)
    kernel((blocks,), (THREADS,), (np.uint64(seed), np.int32(per_thread), hits))
    return 4 * int(hits[0]) / (blocks * THREADS * per_thread)


def check(cp: Any) -> dict[str, float]:
    """Estimate pi twice with one seed and once with another; return the estimates.

    Raises
    ------
    AssertionError
        Six standard deviations off, the same seed differs, or another seed does not.
    """
    seed = int(np.random.default_rng().integers(2**63))
    first, again, other = estimate(seed), estimate(seed), estimate(seed + 1)
    deviation = (np.pi * (4 - np.pi) / (BLOCKS * THREADS * PER_THREAD)) ** 0.5
    assert first == again != other, (first, again, other)
    for value in (first, other):
        assert abs(value - np.pi) <= 6 * deviation, f"{value} is not pi"
    return {f"pi, seed {seed}": first, f"pi, seed {seed + 1}": other}


if __name__ == "__main__":
    from examples._main import main

    main(compile_only, check)
