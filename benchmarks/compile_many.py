"""Many CuTe kernels at once: `compile_many` against NVRTC compiling one after the other in process.

``python -m benchmarks.compile_many [KERNELS …] [--workers 1 2 4 …] [--save]``: by default 8 and 32
kernels with as many workers as there are cores. Every contender starts in a fresh process with an
empty cache, except for the rows with an existing precompiled header. They take turns, and medians of
ROUNDS runs (by default 3) are printed. All kernels differ, so no cache has them. There are two kinds, since
a precompiled header saves reading headers but not instantiating templates: one kernel addresses a tensor,
the other fills and copies one. *N processes of NVRTC alone* each compile every Nth kernel and store
nothing: the most that the machine can do without a header.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial

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
import os
names = [f"k<{number}>" for number in range(task["first"], task["first"] + task["kernels"])]
def nvrtc_alone(names):
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
    return begin

if task["who"] == "serial NVRTC":
    begin = nvrtc_alone(names)
elif task["who"] == "NVRTC alone":
    from cuda.bindings import nvrtc
    begin = time.perf_counter()
    for number in range(task["workers"]):
        if not os.fork():
            nvrtc_alone(names[number::task["workers"]])
            os._exit(0)
    for _ in range(task["workers"]):
        assert os.wait()[1] == 0
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

    wanted = ("forward", "cudart", "crt", "cccl", "cutlass")
    task = {
        "who": who,
        "source": TEMPLATE.replace("BODY", SORTS[sort]),
        "kernels": kernels,
        "first": first,
        "folders": [d.path for d in toolkit.current().search if d.label in wanted],
        "pch": pch,
        "linger": pch,
        "workers": workers,
    }
    with tempfile.TemporaryDirectory() as driver:
        environ = {"RTCOMPILE_CACHE_DIR": cache, "RTCOMPILE_JOBS": str(workers)}
        # With a GPU, NVRTC alone would find the builds of earlier rounds in the driver's cache.
        environ["CUDA_CACHE_PATH"] = driver
        done = subprocess.run(
            [sys.executable, "-c", CHILD],
            input=json.dumps(task),
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, f"{who}: {done.stderr}"
    return float(done.stdout)


def run(kernels: int, workers: list[int], sort: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        keep, full = os.path.join(folder, "keep"), os.path.join(folder, "full")
        # What was found of the toolchain, and the precompiled header.
        seconds("rtcompile", 1, keep, sort=sort, first=1_000_000)
        for name in ("index", "objects", "records"):
            shutil.rmtree(os.path.join(keep, name), ignore_errors=True)
        seconds("rtcompile", 8 * workers[-1], full, sort=sort, first=2_000_000, pch=True)
        numbers = itertools.count(1)

        def once(who: str, count: int, pch: bool, start: str = "") -> float:
            cache = start
            if start != full:
                cache = os.path.join(folder, f"cache-{next(numbers)}")
                shutil.copytree(keep, cache)
            first = 10_000 * next(numbers)
            given = {"sort": sort, "workers": count, "pch": pch, "first": first}
            return seconds(who, kernels, cache, **given)

        contenders: dict[str, Callable[[], float]] = {
            "serial NVRTC": lambda: once("serial NVRTC", 1, False)
        }
        for count in workers:
            contenders |= {
                f"{count} processes of NVRTC alone": partial(once, "NVRTC alone", count, False),
                f"{count} workers, no precompiled header": partial(once, "rtcompile", count, False),
                f"{count} workers, the header made on the way": partial(
                    once, "rtcompile", count, True
                ),
                f"{count} workers, the header in place": partial(
                    once, "rtcompile", count, True, full
                ),
            }
        runs: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(ROUNDS):
            for name in list(runs) if number % 2 else list(runs)[::-1]:
                runs[name].append(contenders[name]())
    serial = statistics.median(runs["serial NVRTC"])
    return {
        name: {
            "s": round(statistics.median(took), 2),
            "times faster": round(serial / statistics.median(took), 2),
            "of runs (s)": [round(one, 2) for one in took],
        }
        for name, took in runs.items()
    }


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
