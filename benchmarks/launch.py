"""Launch an empty kernel: rtcompile's RawKernel against CuPy's, alternating, in one process.

`--save` writes benchmarks/results/launch.json.
"""

from __future__ import annotations

import statistics
import time

import cupy

import rtcompile
from benchmarks import _machine

LAUNCHES, ROUNDS = 2000, 41
EMPTY = 'extern "C" __global__ void k() {}'


def microseconds(kernel: cupy.RawKernel) -> float:
    start = time.perf_counter()
    for _ in range(LAUNCHES):
        kernel((1,), (1,), ())
    elapsed = time.perf_counter() - start
    cupy.cuda.get_current_stream().synchronize()
    return elapsed / LAUNCHES * 1e6


def main() -> None:
    kernels = {
        "cupy": cupy.RawKernel(EMPTY, "k"),
        "rtcompile": rtcompile.RawKernel(EMPTY, "k"),
    }
    runs: dict[str, list[float]] = {name: [] for name in kernels}
    for kernel in kernels.values():
        microseconds(kernel)
    for _ in range(ROUNDS):
        for name, kernel in kernels.items():
            runs[name].append(microseconds(kernel))
    ratio = statistics.median(a / b for a, b in zip(runs["rtcompile"], runs["cupy"], strict=True))
    medians = {name: round(statistics.median(times), 3) for name, times in runs.items()}
    _machine.save("launch", {"microseconds, median": medians, "rtcompile / cupy": round(ratio, 3)})


if __name__ == "__main__":
    main()
