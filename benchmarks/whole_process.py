"""Measures whole processes, from the interpreter's start to the result, in comparison with CuPy alone.

With a GPU each process makes arrays, runs one CuPy operation (so that CuPy's context is up, as in
any program), then 1 or 20 kernels through `RawKernel`: CuPy's or rtcompile's. Warm: both caches
hold all of them. Cold: neither holds any. The kernels have CuPy's default options, or options of
their own. The parts that a process reports of itself (import, first kernel, each further one, the
same kernel made again) are called parts.

Without a GPU the kernels are compiled and not run: by `rtcompile.compile`, and by NVRTC in process
as CuPy calls it.

Contenders take turns in one run; medians. ``--save`` writes
benchmarks/results/whole_process.json. ROUNDS sets the number of rounds.
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

from benchmarks import _machine

ROUNDS = int(os.environ.get("ROUNDS", "9"))

GPU_CHILD = r"""
import json, sys, time
who, count, options = json.loads(sys.argv[1])
import cupy
x = cupy.arange(64, dtype=cupy.float32)
x += 1  # the context, and one kernel of CuPy's own
cupy.cuda.Device().synchronize()
begin = time.perf_counter()
if who == "rtcompile":
    from rtcompile import RawKernel
else:
    from cupy import RawKernel
imported = time.perf_counter()
spans = []
for number in range(count):
    source = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] += %d.0f; }' % number
    since = time.perf_counter()
    kernel = RawKernel(source, "k", tuple(options))
    kernel((1,), (64,), (x,))
    spans.append((time.perf_counter() - since) * 1e3)
again = []
for _ in range(200):
    since = time.perf_counter()
    RawKernel(source, "k", tuple(options)).kernel
    again.append((time.perf_counter() - since) * 1e6)
cupy.cuda.Device().synchronize()
assert float(x[0]) == 1 + sum(range(count)), x[0]
further = sorted(spans[1:]) or [0.0]
json.dump({"import ms": (imported - begin) * 1e3, "first ms": spans[0],
           "further ms": further[len(further) // 2], "again us": sorted(again)[100]}, sys.stdout)
"""

CPU_CHILD = r"""
import json, sys, time
who, count, options = json.loads(sys.argv[1])
import cupy  # in both, as in a program that uses it
begin = time.perf_counter()
if who == "rtcompile":
    import rtcompile
    def build(source):
        return rtcompile.compile(source, options=options, arch="sm_90").code
else:
    from cupy.cuda.compiler import _NVRTCProgram
    given = ("-std=c++17", "-default-device", "-arch=sm_90", *options)
    def build(source):
        return _NVRTCProgram(source, "k.cu", method="cubin").compile(given)[0]
imported = time.perf_counter()
spans = []
for number in range(count):
    source = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] += %d.0f; }' % number
    since = time.perf_counter()
    assert build(source)
    spans.append((time.perf_counter() - since) * 1e3)
further = sorted(spans[1:]) or [0.0]
json.dump({"import ms": (imported - begin) * 1e3, "first ms": spans[0],
           "further ms": further[len(further) // 2]}, sys.stdout)
"""

OPTIONS = {"default options": [], "options of their own": ["-DTILE=32", "--use_fast_math"]}


def has_gpu() -> bool:
    return _machine.describe()["gpu"] != "none"


def process(child: str, who: str, count: int, options: list[str], cache: str) -> dict[str, float]:
    """Run one process; return its wall time and the parts it reports."""
    folders = {
        "RTCOMPILE_CACHE_DIR": os.path.join(cache, "rtcompile"),
        "CUPY_CACHE_DIR": os.path.join(cache, "cupy"),
        # From 12.9 on NVRTC uses the driver's cache, which would have the code of CuPy's later rounds.
        "CUDA_CACHE_PATH": os.path.join(cache, "driver"),
    }
    argument = json.dumps([who, count, options])
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", child, argument],
        env={**os.environ, **folders},
        capture_output=True,
        text=True,
        check=False,
    )
    wall = (time.perf_counter() - begin) * 1e3
    assert done.returncode == 0, done.stderr
    return {"whole process ms": wall, **json.loads(done.stdout)}


def make_cold(cache: str, keep: str) -> None:
    """Empty both caches but for what any program has: CuPy's own kernels, and our toolchain."""
    shutil.rmtree(cache, ignore_errors=True)
    shutil.copytree(keep, cache)


def measure(child: str, count: int, options: list[str], *, cold: bool, keep: str) -> dict:
    runs: dict[str, list[dict[str, float]]] = {"CuPy alone": [], "rtcompile": []}
    with tempfile.TemporaryDirectory() as folder:
        cache = os.path.join(folder, "cache")
        make_cold(cache, keep)
        for who in runs:
            process(child, who, count, options, cache)
        for number in range(ROUNDS):
            order = list(runs) if number % 2 else list(runs)[::-1]
            for who in order:
                if cold:
                    make_cold(cache, keep)
                runs[who].append(process(child, who, count, options, cache))
    medians = {
        who: {part: round(statistics.median(run[part] for run in of), 3) for part in of[0]}
        for who, of in runs.items()
    }
    whole = {who: parts["whole process ms"] for who, parts in medians.items()}
    return {**medians, "ratio": round(whole["rtcompile"] / whole["CuPy alone"], 3)}


def main() -> None:
    gpu = has_gpu()
    child = GPU_CHILD if gpu else CPU_CHILD
    results = {}
    with tempfile.TemporaryDirectory() as keep:
        for who in ("CuPy alone", "rtcompile"):  # CuPy's own kernel and our toolchain, found once
            process(child, who, 1, ["-DWARM"], keep)
        for folder in ("objects", "records"):
            shutil.rmtree(os.path.join(keep, "rtcompile", folder), ignore_errors=True)
        for state in ("warm", "cold") if gpu else ("cold",):
            for kind, options in OPTIONS.items():
                for count in (1, 20):
                    name = f"{state}, {count} kernel{'s' * (count > 1)}, {kind}"
                    cold = state == "cold"
                    results[name] = measure(child, count, options, cold=cold, keep=keep)
    _machine.save("whole_process", results)


if __name__ == "__main__":
    main()
