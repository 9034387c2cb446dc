"""Twenty kernels over one device library: linked as LTO-IR, against compiled with it, all in one run.

The library uses CUB's block algorithms; reading their headers takes most of the time. The library is
compiled once to LTO-IR, linked into every kernel by nvJitLink, and inlined there. Needs no GPU.
`--save` writes benchmarks/results/lto_link.json.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable

import rtcompile
from benchmarks._machine import save
from rtcompile import cubin

ARCH = "sm_90"
KERNELS = 20
ROUNDS = 3

LIBRARY = r"""
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_radix_sort.cuh>
#include <cuda/std/cmath>

constexpr int THREADS = 128;

__device__ float block_sum(float x) {
    using Reduce = cub::BlockReduce<float, THREADS>;
    __shared__ typename Reduce::TempStorage storage;
    __syncthreads();
    return Reduce(storage).Sum(x);
}
__device__ float block_max(float x) {
    using Reduce = cub::BlockReduce<float, THREADS>;
    __shared__ typename Reduce::TempStorage storage;
    __syncthreads();
    return Reduce(storage).Reduce(x, [](float a, float b) { return a > b ? a : b; });
}
__device__ int block_offset(int n) {
    using Scan = cub::BlockScan<int, THREADS>;
    __shared__ typename Scan::TempStorage storage;
    int offset;
    __syncthreads();
    Scan(storage).ExclusiveSum(n, offset);
    return offset;
}
__device__ void block_sort(float (&keys)[4]) {
    using Sort = cub::BlockRadixSort<float, THREADS, 4>;
    __shared__ typename Sort::TempStorage storage;
    __syncthreads();
    Sort(storage).Sort(keys);
}
__device__ float softplus(float x) { return x > 20 ? x : cuda::std::log1p(cuda::std::exp(x)); }
__device__ float gelu(float x) { return 0.5f * x * (1 + erff(x * 0.70710678f)); }
"""
DECLARATIONS = """
__device__ float block_sum(float x);
__device__ float block_max(float x);
__device__ int block_offset(int n);
__device__ void block_sort(float (&keys)[4]);
__device__ float softplus(float x);
__device__ float gelu(float x);
"""
BODIES = (
    "float s = block_sum(softplus(x[i])); if (threadIdx.x == 0) y[blockIdx.x] = s * {n};",
    "float m = block_max(x[i]); float s = block_sum(exp(x[i] - m)); y[i] = exp(x[i] - m) / s + {n};",
    "y[block_offset(x[i] > {n}) + blockIdx.x * blockDim.x] = gelu(x[i]);",
    "float k[4] = {{x[i], x[i + {n}], x[i + 2], x[i + 3]}}; block_sort(k); y[i] = k[0] + k[3];",
)


def kernel(number: int) -> str:
    body = BODIES[number % len(BODIES)].format(n=number)
    return (
        f'extern "C" __global__ void kernel{number}(const float* x, float* y) {{\n'
        f"    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    {body}\n}}\n"
    )


def recompile(pch: bool) -> list[rtcompile.ObjectCode]:
    return [
        rtcompile.compile(LIBRARY + kernel(number), arch=ARCH, pch=pch) for number in range(KERNELS)
    ]


def link() -> list[rtcompile.ObjectCode]:
    library = rtcompile.compile(LIBRARY, arch=ARCH, target="ltoir")
    return [
        rtcompile.compile(DECLARATIONS + kernel(number), arch=ARCH, link=[library])
        for number in range(KERNELS)
    ]


def seconds(build: Callable[[], list[rtcompile.ObjectCode]]) -> float:
    """Return how long the whole package takes with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RTCOMPILE_CACHE_DIR"] = folder
        begin = time.perf_counter()
        programs = build()
        spent = time.perf_counter() - begin
    assert not any(program.build.hit for program in programs)
    return spent


def functions_left(programs: list[rtcompile.ObjectCode]) -> dict[str, int]:
    """Count the functions of the library that are still called, not inlined, by name."""
    left: Counter[str] = Counter()
    for program in programs:
        left.update(
            symbol.name
            for symbol in cubin.read_symbols(program.code)
            if symbol.section.startswith(".text.")
            and not symbol.is_kernel
            and not symbol.name.startswith("$")  # the compiler's own, as division
        )
    return dict(left)


def main() -> None:
    candidates: dict[str, Callable[[], list[rtcompile.ObjectCode]]] = {
        "recompile": lambda: recompile(pch=False),
        "recompile, precompiled headers": lambda: recompile(pch=True),
        "LTO link": link,
    }
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(ROUNDS):
        for name, build in candidates.items():
            times[name].append(seconds(build))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RTCOMPILE_CACHE_DIR"] = folder
        called = functions_left(link())
    medians = {name: round(statistics.median(spent), 3) for name, spent in times.items()}
    results = {
        "kernels": KERNELS,
        "rounds": ROUNDS,
        "seconds for the package": medians,
        "recompile / LTO link": round(medians["recompile"] / medians["LTO link"], 2),
        "library functions not inlined": called,
    }
    save("lto_link", results)


if __name__ == "__main__":
    main()
