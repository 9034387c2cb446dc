"""Warm start: from a source to a ready kernel, in a fresh process with everything in the cache.

With a GPU: `RawKernel(...).kernel` for rtcompile and for CuPy, the context up and both imported.
Without one: `rtcompile.compile(...)` up to the bytes of the cubin. Side by side in one run,
alternating, medians. `--save` writes benchmarks/results/warm_start.json.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

from benchmarks import _machine

ROUNDS = 15

PLAIN = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= 2; }'
WMMA = r"""
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;
extern "C" __global__ void k(const half* a, const half* b, float* c) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 0.0f);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, 16);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}
"""
CUTE = r"""
#include <cute/tensor.hpp>
using namespace cute;
extern "C" __global__ void k(float* x) {
    auto t = make_tensor(make_gmem_ptr(x), Layout<Shape<_8, _4>, Stride<_1, _8>>{});
    copy(make_tensor_like(t), t);
}
"""
KERNELS = {"no include": (PLAIN, ()), "wmma": (WMMA, ()), "cute": (CUTE, ("-DNDEBUG",))}

CHILD = r"""
import json, sys, time
task = json.loads(sys.stdin.read())
source, options, library, gpu = task["source"], tuple(task["options"]), task["library"], task["gpu"]
if gpu:
    import cupy
    cupy.zeros(1)
    if library == "cupy":
        from cupy import RawKernel
    else:
        from rtcompile import RawKernel
    start = time.perf_counter()
    RawKernel(source, "k", options).kernel
else:
    from rtcompile import compile
    from rtcompile.build import pipeline
    start = time.perf_counter()
    compile(source, options=options, arch="sm_90a")
print(json.dumps((time.perf_counter() - start) * 1e3))
"""


def milliseconds(library: str, source: str, options: tuple[str, ...], gpu: bool) -> float | None:
    task = {"source": source, "options": options, "library": library, "gpu": gpu}
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(task),
        capture_output=True,
        text=True,
        check=False,
    )
    return float(done.stdout) if done.returncode == 0 else None


def import_milliseconds(statement: str) -> float:
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout) * 1e3


def main() -> None:
    gpu = "gpu" in sys.argv
    libraries = ("rtcompile", "cupy") if gpu else ("rtcompile",)
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["RTCOMPILE_CACHE_DIR"] = os.environ["CUPY_CACHE_DIR"] = cache
        for name, (source, options) in KERNELS.items():
            cold = {lib: milliseconds(lib, source, options, gpu) for lib in libraries}
            runs: dict[str, list[float]] = {lib: [] for lib in libraries}
            for _ in range(ROUNDS):
                for lib in libraries:
                    if cold[lib] is not None:
                        runs[lib].append(milliseconds(lib, source, options, gpu) or float("nan"))
            row: dict[str, object] = {"cold ms": cold}
            medians = {lib: statistics.median(times) for lib, times in runs.items() if times}
            row["warm ms, median"] = {lib: round(value, 3) for lib, value in medians.items()}
            row["cannot compile it"] = [lib for lib in libraries if cold[lib] is None]
            if "cupy" in medians:
                row["cupy / rtcompile"] = round(medians["cupy"] / medians["rtcompile"], 1)
            results[name] = row
        results["import ms, median"] = {
            statement: round(
                statistics.median(import_milliseconds(statement) for _ in range(ROUNDS)), 2
            )
            for statement in ("import rtcompile", "from rtcompile import compile")
        }
    _machine.save("warm_start" if gpu else "warm_start_cpu", results)


if __name__ == "__main__":
    main()
