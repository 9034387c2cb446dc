"""Many small kernels at once: `compile_many` against NVRTC compiling one after the other in process.

``python -m benchmarks.batch_small [KERNELS …] [--workers N …] [--save]``: by default 64 and 256
kernels that include nothing, with as many workers as there are cores. Every contender starts in a
fresh process with an empty cache that holds only what was found of the toolchain; they take turns,
and medians are told: of the whole process, and of the batch, which is a part of it. ROUNDS sets the
number of rounds.
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
import json, sys, time
who, count = json.loads(sys.argv[1])
sources = [
    'extern "C" __global__ void k(float* x) { x[threadIdx.x] += %d.0f; }' % number
    for number in range(count)
]
if who == "serial NVRTC":
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
else:
    import rtcompile
    begin = time.perf_counter()
    requests = [rtcompile.CompileRequest(source, arch="sm_90") for source in sources]
    codes = rtcompile.compile_many(requests, progress=False)
    assert not any(code.build.hit for code in codes)
print(time.perf_counter() - begin)
"""


def process(who: str, kernels: int, cache: str, workers: int = 1) -> tuple[float, float]:
    """Return the seconds of the whole process and of the batch in it."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, json.dumps([who, kernels])],
        env={**os.environ, "RTCOMPILE_CACHE_DIR": cache, "RTCOMPILE_JOBS": str(workers)},
        capture_output=True,
        text=True,
        check=True,
    )
    return time.perf_counter() - begin, float(done.stdout)


def measure(kernels: int, workers: list[int], keep: str) -> dict[str, object]:
    contenders = {"serial NVRTC": 1, **{f"{count} workers": count for count in workers}}
    runs: dict[str, list[tuple[float, float]]] = {who: [] for who in contenders}
    with tempfile.TemporaryDirectory() as folder:
        cache = os.path.join(folder, "cache")
        for number in range(ROUNDS):
            for who in list(runs) if number % 2 else list(runs)[::-1]:
                shutil.rmtree(cache, ignore_errors=True)
                shutil.copytree(keep, cache)
                runs[who].append(process(who, kernels, cache, contenders[who]))
    rows: dict[str, dict[str, float]] = {}
    for who, took in runs.items():
        whole, batch = (statistics.median(part) for part in zip(*took, strict=True))
        rows[who] = {"whole process s": round(whole, 3), "batch s": round(batch, 3)}
        for part in ("whole process", "batch"):
            faster = rows["serial NVRTC"][f"{part} s"] / rows[who][f"{part} s"]
            rows[who][f"{part}, times faster"] = round(faster, 2)
    return dict(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kernels", nargs="*", type=int, default=[64, 256])
    parser.add_argument("--workers", nargs="*", type=int, default=[len(os.sched_getaffinity(0))])
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as keep:
        process("rtcompile", 1, keep)
        for folder in ("answers", "objects", "manifests"):
            shutil.rmtree(os.path.join(keep, folder), ignore_errors=True)
        results = {f"{n} kernels": measure(n, given.workers, keep) for n in given.kernels}
    _machine.save("batch_small", results)


if __name__ == "__main__":
    main()
