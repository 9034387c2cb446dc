"""Measures cold whole processes whose kernels are compiled ahead, in comparison with CuPy alone.

CuPy alone, rtcompile, and rtcompile with ``RTCOMPILE_AHEAD=0`` take turns; both caches contain only
what any program has (CuPy's own kernel, rtcompile's toolchain). Rows: one kernel constructed after the first
array; one, and 20, constructed at the program's top; 100 with user headers after an edit of one; eight
CuTe kernels, in comparison with NVRTC as CuPy calls it; 500 constructed kernels, three of them launched.
``seconds`` is wall time, ``processor`` the processor time of the process and of all its children.

Without a GPU kernels are compiled for sm_90 and not run. CORES ("16,4,1") and ROUNDS are numbers, ROWS names
rows; of fewer cores than the first there are half as many rounds. ``--save`` writes
benchmarks/results/ahead_gpu.json.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import _machine

ROUNDS = int(os.environ.get("ROUNDS", "7"))
CORES = [int(each) for each in os.environ.get("CORES", "16,4,1").split(",")]
CONTENDERS = ("CuPy alone", "rtcompile", "rtcompile, RTCOMPILE_AHEAD=0")
GPU = _machine.describe()["gpu"] != "none"

CHILD = r"""
import json, sys
who, row, folder, gpu = json.loads(sys.argv[1])
count, used = {"after": (1, 1), "top": (1, 1), "top 20": (20, 20), "headers 100": (100, 100),
               "CuTe 8": (8, 8), "500 of which 3": (500, 3),
               "array": (0, 0)}[row]
import cupy

def array():
    x = cupy.arange(64, dtype=cupy.float32)
    x += 1  # the context, and one kernel of CuPy's own
    return x

x = array() if gpu and row == "after" else None
if who == "CuPy alone":
    from cupy import RawKernel
    more = {}
else:
    from rtcompile import RawKernel
    more = {} if gpu else {"arch": "sm_90"}
options, text = (), 'extern "C" __global__ void k(float* x) { x[threadIdx.x] += %d.0f; }'
if row == "headers 100":
    options = ("-I" + folder, "-std=c++17")
    text = ('#include "common.h"\n#include "part%d.h"\nextern "C" __global__ void k(float* x) '
            "{ x[threadIdx.x] += common<float>() + part() + %d.0f; }")
    sources = [text % (number % 10, number) for number in range(count)]
elif row == "CuTe 8":
    options = ("-std=c++17", "-default-device", "-DNDEBUG")
    sources = [r'''#include <cute/tensor.hpp>
using namespace cute;
extern "C" __global__ void k(float* x) {
    auto t = make_tensor(make_gmem_ptr(x), Layout<Shape<_8, _8>, Stride<_1, _8>>{});
    x[threadIdx.x] = t(threadIdx.x %% 8, threadIdx.x / 8) + %d.0f;
}''' % number for number in range(count)]
else:
    sources = [text % number for number in range(count)]
if who == "CuPy alone" and (row == "CuTe 8" or not gpu):
    from cupy.cuda import compiler, function
    with open(folder + "/search.json") as file:
        options = (*options, *("-I" + each for each in json.load(file)))
    x = array() if gpu else x
    arch = compiler._get_arch() if gpu else "90"
    for source in sources[:used]:
        given = ("-std=c++17", "-default-device", f"-arch=sm_{arch}", *options)
        code = compiler._NVRTCProgram(source, "k.cu", method="cubin").compile(given)[0]
        if gpu:
            module = function.Module()
            module.load(code)
            module.get_function("k")((1,), (64,), (x,))
else:
    kernels = [RawKernel(source, "k", options, **more) for source in sources]
    x = array() if gpu and x is None else x
    for kernel in kernels[:used]:
        kernel((1,), (64,), (x,)) if gpu else kernel.build
if gpu:
    cupy.cuda.Device().synchronize()
    if row not in ("headers 100", "CuTe 8", "array"):
        assert float(x[0]) == 1 + sum(range(used)), x[0]
"""


def process(who: str, row: str, cache: str, folder: str, cores: int) -> tuple[float, float]:
    """Run one process; return its seconds of wall and of processor time."""
    environ = {
        **os.environ,
        "RTCOMPILE_CACHE_DIR": os.path.join(cache, "rtcompile"),
        "CUPY_CACHE_DIR": os.path.join(cache, "cupy"),
        # From 12.9 on NVRTC uses the driver's cache, which would have the code of CuPy's later rounds.
        "CUDA_CACHE_PATH": os.path.join(cache, "driver"),
        "RTCOMPILE_AHEAD": "0" if who.endswith("=0") else "1",
    }
    argument = json.dumps([who, row, folder, GPU])
    some = ["taskset", "-c", f"0-{cores - 1}", sys.executable, "-c", CHILD, argument]
    begin = time.perf_counter()
    child = subprocess.Popen(some, env=environ)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0, (who, row)
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime


def write_headers(folder: str, edit: int) -> None:
    """Write the headers of "headers 100", one of which is edited."""
    common = "".join(f"template <class T> struct C{n} {{ T value = {n}; }};\n" for n in range(400))
    common += f"template <class T> __device__ T common() {{ return C7<T>{{}}.value + {edit}; }}\n"
    Path(folder, "common.h").write_text(f"#pragma once\n{common}")
    for part in range(10):
        text = f"#pragma once\n__device__ inline float part() {{ return {part}; }}\n"
        Path(folder, f"part{part}.h").write_text(text)


def measure(row: str, cores: int, rounds: int, keep: str) -> dict[str, object]:
    runs: dict[str, list[tuple[float, float]]] = {who: [] for who in CONTENDERS}
    with tempfile.TemporaryDirectory() as folder:
        from rtcompile import toolkit

        paths = [directory.path for directory in toolkit.current().search]
        Path(folder, "search.json").write_text(json.dumps(paths))
        write_headers(folder, 0)
        caches = {who: os.path.join(folder, f"cache{n}") for n, who in enumerate(CONTENDERS)}
        for who, cache in caches.items():
            shutil.copytree(keep, cache)
            if row == "headers 100" and who != "CuPy alone":
                process(who, row, cache, folder, os.cpu_count() or 1)
        for number in range(rounds):
            time.sleep(0.05)
            write_headers(folder, number + 1)
            for who in CONTENDERS if number % 2 else CONTENDERS[::-1]:
                # CuPy does not notice the edit: who edits a header empties its cache.
                if row != "headers 100" or who == "CuPy alone":
                    shutil.rmtree(caches[who])
                    shutil.copytree(keep, caches[who])
                runs[who].append(process(who, row, caches[who], folder, cores))
    found: dict[str, object] = {"rounds": rounds}
    for who, of in runs.items():
        found[who] = {
            "seconds": round(statistics.median(wall for wall, _ in of), 3),
            "processor": round(statistics.median(used for _, used in of), 3),
            "all": [round(wall, 3) for wall, _ in of],
        }
    base: dict[str, float] = found["CuPy alone"]  # type: ignore[assignment]
    for who in CONTENDERS[1:]:
        own: dict[str, float] = found[who]  # type: ignore[assignment]
        own["of CuPy's time"] = round(own["seconds"] / base["seconds"], 3)
    print(cores, row, json.dumps(found), flush=True)
    return found


def main() -> None:
    rows = {"after": 1.0, "top": 1.0, "top 20": 1.0, "500 of which 3": 1.0}
    rows |= {"headers 100": 0.4, "CuTe 8": 0.4}  # a part of the rounds: each takes long
    only = os.environ.get("ROWS")
    results = {}
    with tempfile.TemporaryDirectory() as keep:
        if GPU:
            process("CuPy alone", "array", keep, keep, 1)
        process("rtcompile", "top", keep, keep, 1)
        for entry in os.scandir(os.path.join(keep, "rtcompile")):
            if entry.name != "toolchains":
                shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
        for cores in [each for each in CORES if each <= (os.cpu_count() or 1)]:
            for row, part in rows.items():
                if only and row not in only.split(","):
                    continue
                few = max(1, round(ROUNDS * part * (1 if cores == CORES[0] else 0.5)))
                results[f"{row}, {cores} cores"] = measure(row, cores, few, keep)
                _machine.save("ahead_gpu", results)


if __name__ == "__main__":
    main()
