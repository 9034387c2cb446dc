"""Many small kernels at once: `compile_many` against NVRTC compiling one after the other in process.

``python -m benchmarks.batch_small [KERNELS …] [--workers N …] [--save]``: by default 64 and 256
kernels that include nothing, with as many workers as there are cores. Every contender starts in a
fresh process; they take turns. Medians are printed: of the whole process, of the batch, which is a part
of it, and of the processor time of the calling process.

- *N workers*: `compile_many` with a cache that contains only the found toolchain.
- *N processes of NVRTC alone*: forked, each compiles every Nth kernel and stores nothing: the most that
  the machine can do.
- *all hits*: `compile_many` with all of them in the cache; *one by one, all hits*: `compile` of each.

ROUNDS sets the number of rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks import _machine

ROUNDS = int(os.environ.get("ROUNDS", "7"))

CHILD = r"""
import json, os, sys, time
who, kernels, workers = json.loads(sys.argv[1])
sources = [
    'extern "C" __global__ void k(float* x) { x[threadIdx.x] += %d.0f; }' % number
    for number in range(kernels)
]

def nvrtc_alone(sources):
    from cuda.bindings import nvrtc
    options = [b"-arch=sm_90", b"-std=c++17", b"-default-device", b"-ftz=true"]
    def call(result, *values):
        assert int(result) == 0, result
        return values[0] if values else None
    begin = time.perf_counter()
    for source in sources:
        program = call(*nvrtc.nvrtcCreateProgram(source.encode(), b"k.cu", 0, None, None))
        call(*nvrtc.nvrtcCompileProgram(program, len(options), options))
        code = b" " * call(*nvrtc.nvrtcGetCUBINSize(program))
        call(*nvrtc.nvrtcGetCUBIN(program, code))
        call(*nvrtc.nvrtcDestroyProgram(program))
    return begin

if who == "serial NVRTC":
    begin = nvrtc_alone(sources)
elif who == "NVRTC alone":
    from cuda.bindings import nvrtc
    begin = time.perf_counter()
    for number in range(workers):
        if not os.fork():
            nvrtc_alone(sources[number::workers])
            os._exit(0)
    for _ in range(workers):
        assert os.wait()[1] == 0
else:
    import rtcompile
    begin, spent = time.perf_counter(), time.process_time()
    if who == "one by one":
        codes = [rtcompile.compile(source, arch="sm_90") for source in sources]
    else:
        requests = [rtcompile.CompileRequest(source, arch="sm_90") for source in sources]
        codes = rtcompile.compile_many(requests, progress=False)
    assert all(bool(code.build.hit) == (who != "batch") for code in codes)
    spent = time.process_time() - spent
print(time.perf_counter() - begin, spent if "spent" in vars() else 0.0)
"""


def process(who: str, kernels: int, cache: str, workers: int) -> tuple[float, float, float]:
    """Return the seconds of the whole process, of the batch in it, and of the caller's processor."""
    with tempfile.TemporaryDirectory() as driver:
        environ = {"RTCOMPILE_CACHE_DIR": cache, "RTCOMPILE_JOBS": str(workers)}
        # With a GPU, NVRTC alone would find the builds of earlier rounds in the driver's cache.
        environ["CUDA_CACHE_PATH"] = driver
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", CHILD, json.dumps([who, kernels, workers])],
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            check=True,
        )
        whole = time.perf_counter() - begin
    batch, spent = map(float, done.stdout.split())
    return whole, batch, spent


def measure(kernels: int, workers: list[int], keep: str) -> dict[str, object]:
    contenders = {"serial NVRTC": ("serial NVRTC", 1)}
    for count in workers:
        contenders[f"{count} processes of NVRTC alone"] = ("NVRTC alone", count)
        contenders[f"{count} workers"] = ("batch", count)
    contenders["all hits"] = ("all hits", workers[-1])
    contenders["one by one, all hits"] = ("one by one", workers[-1])
    runs: dict[str, list[tuple[float, float, float]]] = {who: [] for who in contenders}
    with tempfile.TemporaryDirectory() as folder:
        full = os.path.join(folder, "full")
        shutil.copytree(keep, full)
        process("batch", kernels, full, workers[-1])
        cache = os.path.join(folder, "cache")
        for number in range(ROUNDS):
            for name in list(runs) if number % 2 else list(runs)[::-1]:
                who, count = contenders[name]
                shutil.rmtree(cache, ignore_errors=True)
                shutil.copytree(keep, cache)
                at = cache if who == "batch" else full
                runs[name].append(process(who, kernels, at, count))
    rows: dict[str, dict[str, float]] = {}
    for name, took in runs.items():
        whole, batch, spent = (statistics.median(part) for part in zip(*took, strict=True))
        rows[name] = {"whole process s": round(whole, 3), "batch s": round(batch, 3)}
        for part in ("whole process", "batch"):
            faster = rows["serial NVRTC"][f"{part} s"] / rows[name][f"{part} s"]
            rows[name][f"{part}, times faster"] = round(faster, 2)
        if spent:
            rows[name]["ms of the caller's processor a kernel"] = round(spent / kernels * 1e3, 3)
    return dict(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernels", nargs="*", type=int, default=[64, 256])
    parser.add_argument("--workers", nargs="*", type=int, default=[len(os.sched_getaffinity(0))])
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as keep:
        process("batch", 1, keep, 1)
        for folder in ("index", "objects", "records"):
            shutil.rmtree(os.path.join(keep, folder), ignore_errors=True)
        results = {f"{n} kernels": measure(n, given.workers, keep) for n in given.kernels}
    _machine.save("batch_small", results)


if __name__ == "__main__":
    main()
