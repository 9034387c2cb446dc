"""Warm start from a bundle, beside the disk cache's and CuPy's; import of a package of kernels.

With a GPU (`gpu`): `RawKernel(...).kernel`, the context up and everything imported. Without one:
`rtcompile.compile(...)` up to the bytes of the cubin. Fresh processes, alternating, medians. From a
bundle with ``RTCOMPILE_JIT=0`` and a cache directory that cannot be.
`--save` writes benchmarks/results/bundle_warm.json.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

from benchmarks import _machine
from benchmarks.warm_start import KERNELS, ROUNDS

CHILD = r"""
import json, sys, time
task = json.loads(sys.stdin.read())
source, options, way = task["source"], tuple(task["options"]), task["way"]
if way == "bundle":
    import rtcompile
    rtcompile.use_bundle(task["bundle"])
if task["gpu"]:
    import cupy
    cupy.zeros(1)
    if way == "cupy":
        from cupy import RawKernel
    else:
        from rtcompile import RawKernel
    start = time.perf_counter()
    kernel = RawKernel(source, "k", options)
    kernel.kernel
    elapsed = time.perf_counter() - start
    hit = None if way == "cupy" else kernel.build.hit
else:
    from rtcompile import compile
    from rtcompile.build import pipeline
    start = time.perf_counter()
    code = compile(source, options=options, arch="sm_90a")
    elapsed = time.perf_counter() - start
    hit = code.build.hit
print(json.dumps({"ms": elapsed * 1e3, "hit": hit}))
"""
BUNDLE = r"""
import sys
from rtcompile import CompileRequest
from rtcompile.cli import bundling
from benchmarks.warm_start import KERNELS
requests = [CompileRequest(source, options=options) for source, options in KERNELS.values()]
bundling.bundle(requests, sys.argv[1], archs=["sm_90a"])
"""


def start(way: str, source: str, options: tuple[str, ...], bundle: str, gpu: bool) -> float | None:
    """Return the milliseconds of one fresh process; None if this way cannot build it."""
    environ = dict(os.environ)
    if way == "bundle":
        environ |= {"RTCOMPILE_JIT": "0", "RTCOMPILE_CACHE_DIR": "/proc/nowhere"}
    task = {"source": source, "options": options, "way": way, "bundle": bundle, "gpu": gpu}
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps(task),
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return None
    reply = json.loads(done.stdout)
    if way == "bundle" and reply["hit"] != "bundle":
        raise RuntimeError(f"not from the bundle but {reply['hit']}")
    return float(reply["ms"])


def imports(statement: str) -> float:
    """Return the milliseconds that a statement takes in a fresh process."""
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((os.getcwd(), "examples/fastrows"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    return float(done.stdout) * 1e3


def main() -> None:
    gpu = "gpu" in sys.argv
    ways = ("bundle", "cache", "cupy") if gpu else ("bundle", "cache")
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RTCOMPILE_CACHE_DIR"] = os.environ["CUPY_CACHE_DIR"] = folder
        bundle = os.path.join(folder, "kernels.rtcb")
        subprocess.run([sys.executable, "-c", BUNDLE, bundle], check=True)
        for name, (source, options) in KERNELS.items():
            cold = {way: start(way, source, options, bundle, gpu) for way in ways}
            runs: dict[str, list[float]] = {way: [] for way in ways if cold[way] is not None}
            for _ in range(ROUNDS):
                for way, times in runs.items():
                    times.append(start(way, source, options, bundle, gpu) or float("nan"))
            results[name] = {
                "warm ms, median": {w: round(statistics.median(t), 3) for w, t in runs.items()},
                "cannot build it": [way for way in ways if cold[way] is None],
            }
        statements = ("import fastrows", "import rtcompile")
        for statement in statements:
            times = [imports(statement) for _ in range(ROUNDS)]
            results[f"{statement}, ms"] = round(statistics.median(times), 2)
    _machine.save("bundle_warm" if gpu else "bundle_warm_cpu", results)


if __name__ == "__main__":
    main()
