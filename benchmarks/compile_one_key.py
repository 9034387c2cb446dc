"""Many processes, one cold key: how often it is compiled, and how long they all wait.

``python -m benchmarks.compile_one_key [PROCESSES] [--save]``: 64 by default, all started at once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

from benchmarks import _machine

CHILD = r"""
import sys, time
import rtcompile
print("ready", flush=True)
sys.stdin.readline()
begin = time.perf_counter()
code = rtcompile.compile('extern "C" __global__ void k(float* x) { *x = 1; }', arch="sm_90")
print(code.build.hit, time.perf_counter() - begin, flush=True)
"""


def run(processes: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as cache:
        environ = {**os.environ, "RTCOMPILE_CACHE_DIR": cache}
        running = [
            subprocess.Popen(
                [sys.executable, "-c", CHILD],
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(processes)
        ]
        for process in running:
            assert process.stdout is not None
            process.stdout.readline()
        for process in running:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.communicate()[0].split() for process in running]
    waited = sorted(float(seconds) for _, seconds in outputs)
    return {
        "processes": processes,
        "compiled": sum(hit == "None" for hit, _ in outputs),
        "median s": round(statistics.median(waited), 3),
        "last s": round(waited[-1], 3),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("processes", nargs="?", type=int, default=64)
    parser.add_argument("--save", action="store_true")
    _machine.save("compile_one_key", run(parser.parse_args().processes))
