"""Many CuTe kernels at once: `compile_many` against NVRTC compiling one after the other in process.

``python -m benchmarks.compile_many [KERNELS …] [--workers 1 2 4 …] [--save]``: by default 8 and 32
kernels with as many workers as there are cores. Every contender starts in a fresh process with an
empty cache, but for the rows whose precompiled header is in place: the medians of some runs. Kernels
differ, so none is found in any cache. Of two sorts, since a precompiled header spares the headers and
not the instantiation: one that addresses a tensor, and one that fills and copies one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from benchmarks import _machine

ROUNDS = int(os.environ.get("ROUNDS", "3"))

TEMPLATE = r"""
#include <cute/tensor.hpp>
using namespace cute;
template <int N> __global__ void k(float* x) {
    auto t = make_tensor(make_gmem_ptr(x), Layout<Shape<_8, _4>, Stride<_1, _8>>{});
    BODY
}
"""
SORTS = {
    "address": "t(threadIdx.x % 8, threadIdx.y % 4) = float(N);",
    "fill and copy": "auto r = make_tensor_like(t); fill(r, float(N)); copy(r, t);",
}

CHILD = r"""
import json, sys, time
task = json.loads(sys.stdin.read())
names = [f"k<{number}>" for number in range(task["first"], task["first"] + task["kernels"])]
if task["who"] == "serial NVRTC":
    from cuda.bindings import nvrtc
    options = ["-arch=sm_90", "-std=c++17", "-DNDEBUG", "-default-device"]
    given = [option.encode() for option in options + ["-I" + f for f in task["folders"]]]
    def call(result, *values):
        assert int(result) == 0, result
        return values[0] if values else None
    begin = time.perf_counter()
    for name in names:
        program = call(*nvrtc.nvrtcCreateProgram(task["source"].encode(), b"k.cu", 0, None, None))
        call(*nvrtc.nvrtcAddNameExpression(program, name.encode()))
        call(*nvrtc.nvrtcCompileProgram(program, len(given), given))
        code = b" " * call(*nvrtc.nvrtcGetCUBINSize(program))
        call(*nvrtc.nvrtcGetCUBIN(program, code))
        call(*nvrtc.nvrtcDestroyProgram(program))
else:
    import rtcompile
    template = rtcompile.CompileRequest(task["source"], options=("-DNDEBUG",), arch="sm_90")
    begin = time.perf_counter()
    codes = rtcompile.compile_many(
        [template.replace(name_expressions=(name,)) for name in names],
        pch=task["pch"],
        progress=False,
    )
    assert not any(code.build.hit for code in codes)
print(time.perf_counter() - begin, flush=True)
if task["linger"]:
    import threading
    for thread in threading.enumerate():
        if thread.name == "rtcompile-pch":
            thread.join()
"""


def seconds(
    who: str,
    kernels: int,
    cache: str,
    *,
    sort: str = "fill and copy",
    first: int = 1,
    workers: int = 1,
    pch: bool = False,
) -> float:
    from rtcompile import toolkit

    wanted = ("cudart", "crt", "cccl", "cutlass")
    task = {
        "who": who,
        "source": TEMPLATE.replace("BODY", SORTS[sort]),
        "kernels": kernels,
        "first": first,
        "folders": [d.path for d in toolkit.current().search if d.label in wanted],
        "pch": pch,
        "linger": pch,
    }
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(task),
        env={**os.environ, "RTCOMPILE_CACHE_DIR": cache, "RTCOMPILE_JOBS": str(workers)},
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def run(kernels: int, workers: list[int], sort: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as cache:
        serial = seconds("serial NVRTC", kernels, cache, sort=sort)
    rows: dict[str, object] = {"serial NVRTC": {"s": round(serial, 2)}}

    def add(name: str, *took: float) -> None:
        middle = statistics.median(took)
        rows[name] = {
            "s": round(middle, 2),
            "times faster": round(serial / middle, 2),
            "of runs (s)": [round(one, 2) for one in took],
        }

    for count in workers:
        with tempfile.TemporaryDirectory() as cache:
            took = seconds("rtcompile", kernels, cache, sort=sort, workers=count)
            add(f"{count} workers, no precompiled header", took)
        with tempfile.TemporaryDirectory() as cache:
            given = {"sort": sort, "workers": count, "pch": True}
            took = seconds("rtcompile", kernels, cache, **given)
            add(f"{count} workers, the header made on the way", took)
            in_place = [
                seconds("rtcompile", kernels, cache, first=10_000 * (1 + i), **given)
                for i in range(ROUNDS)
            ]
            add(f"{count} workers, the header in place", *in_place)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernels", nargs="*", type=int, default=[8, 32])
    parser.add_argument("--workers", nargs="*", type=int, default=[len(os.sched_getaffinity(0))])
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    results = {
        f"{n} kernels: {sort}": run(n, given.workers, sort) for n in given.kernels for sort in SORTS
    }
    _machine.save("compile_many", results)
