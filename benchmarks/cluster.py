"""Measures a second node of a cluster that fetches kernels from a store instead of compiling them.

49 kernels as CuPy makes them (its prefix, its headers) and 20 small ones without includes, as in 20
RawModules. The first node compiles and pushes; the second, with an empty cache, fetches them one
after the other in a fresh process. For each kernel: the mean over the process, of which the median
process is shown, and the lower quartile over all, since other programs disturb the machine. Then
local hits are measured with and without a store configured, in processes that take turns.

Last, the cost of a store that stops responding during a run: 40 small kernels in 8 threads, from the
moment at which the store is paused (or killed, or continues) until the process has ended, and the same
without a store. The rounds take turns. The quickest is shown, and the longest wait for slow replies.

The stores are a folder, redis-server, and moto for S3; what is not installed is left out. No GPU. ROUNDS sets the
number of rounds; ``--save`` writes benchmarks/results/cluster.json.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks import _machine
from tests import nodes, servers

ROUNDS = int(os.environ.get("ROUNDS", "5"))

PROGRAM = r"""
import json, sys, time
import cupy, rtcompile

folder = cupy.__path__[0] + "/_core/include"
prefix = "#include <cupy/complex.cuh>\n#include <cupy/carray.cuh>\n#include <cupy/atomics.cuh>\n"
body = 'extern "C" __global__ void k(const CArray<float, 1, true> a, CArray<float, 1, true> b) {{ b[0] = a[0] * {}; }}'
cupys = [(prefix + body.format(n), ("-std=c++17", "-ftz=true", "-I" + folder)) for n in range(49)]
small = [('extern "C" __global__ void k(float* a) {{ a[0] = {}; }}'.format(n), ()) for n in range(20)]
rtcompile.compile("__global__ void first() {}", arch="sm_80")  # imports, connection, compiler's identity
found = {"hits": []}
for name, kernels in (("cupy", cupys), ("small", small)):
    found[name] = []
    for source, options in kernels:
        begin = time.perf_counter()
        code = rtcompile.compile(source, options=options, arch="sm_80")
        found[name].append((time.perf_counter() - begin) * 1e3)
        found["hits"].append(code.build.hit)
print(json.dumps(found))
"""

# Builds one kernel, waits for a line, builds 40 in threads, and ends.
THREADS = r"""
import atexit, sys, warnings
from concurrent.futures import ThreadPoolExecutor
import rtcompile
from tests import nodes


@atexit.register  # the first that is registered is the last that runs: after all is written
def print_waited():
    from rtcompile.extras.cluster.stores import current
    stores = current()
    print(0.0 if stores is None else stores.levels[0].counts["seconds_waited"])


warnings.simplefilter("ignore")
rtcompile.compile(nodes.source(0), arch="sm_80")
print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(8) as threads:
    for future in [
        threads.submit(rtcompile.compile, nodes.source(n), arch="sm_80") for n in range(1, 41)
    ]:
        assert future.result().build.hit is None
"""


def run(environ: dict[str, str]) -> dict[str, list[object]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[object]] = json.loads(done.stdout)
    return found


def milliseconds(runs: list[dict[str, list[object]]], name: str) -> dict[str, float]:
    """Return what a kernel takes: the mean of the median process, and the lower quartile of all."""
    times = [[float(each) for each in found[name]] for found in runs]  # type: ignore[arg-type]
    return {
        "mean": round(statistics.median(map(statistics.fmean, times)), 2),
        "lower quartile": round(
            statistics.quantiles([one for run in times for one in run], n=4)[0], 2
        ),
    }


def second_node(folder: Path, address: str) -> dict[str, object]:
    """Measure nodes that fetch what the first has pushed."""
    first = run(nodes.environment(folder, "first", address))
    assert set(first["hits"]) == {None}
    fetched = []
    for number in range(ROUNDS):
        fetched.append(run(nodes.environment(folder, f"node{number}", address)))
        assert set(fetched[-1]["hits"]) == {"remote"}, fetched[-1]["hits"]
    return {
        name: {
            "compiled, ms a kernel": milliseconds([first], name),
            "fetched, ms a kernel": milliseconds(fetched, name),
        }
        for name in ("cupy", "small")
    }


def local_hits(folder: Path, address: str) -> dict[str, object]:
    """Measure local hits of fresh processes, with and without a store."""
    with_store = nodes.environment(folder, "local", address)
    without_store = {**with_store, "RTCOMPILE_REMOTE": ""}
    run(with_store), run(without_store), run(with_store), run(without_store)
    times: dict[str, list[float]] = {"with": [], "without": []}
    for _ in range(4 * ROUNDS):
        for name, environ in (("with", with_store), ("without", without_store)):
            found = run(environ)
            assert set(found["hits"]) == {"disk"}
            times[name] += [float(each) for each in found["small"]]  # type: ignore[arg-type]
    least = {name: statistics.quantiles(of, n=4)[0] for name, of in times.items()}
    return {
        "with a store, ms": round(least["with"], 4),
        "without, ms": round(least["without"], 4),
        "ratio": round(least["with"] / least["without"], 4),
    }


def until_its_end(environ: dict[str, str], harm: Callable[[], None]) -> tuple[float, float]:
    """Return how long a process takes from the moment that its store is harmed, and what it waited."""
    process = subprocess.Popen(
        [sys.executable, "-c", THREADS],
        env={**os.environ, **environ},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    harm()
    begin = time.perf_counter()
    output, _ = process.communicate("\n")
    assert process.returncode == 0
    return time.perf_counter() - begin, float(output)


def store_that_ends(server: Callable[[], AbstractContextManager[servers.Server]]) -> object:
    """Measure processes whose store is harmed in the middle, and others whose is not."""
    harms = ("no store", "goes on", "killed", "paused")
    found: dict[str, list[tuple[float, float]]] = {harm: [] for harm in harms}
    for _ in range(ROUNDS):
        for harm in harms:
            with tempfile.TemporaryDirectory() as folder, server() as store:
                address = "" if harm == "no store" else store.address
                environ = nodes.environment(Path(folder), "node", address)
                act = {"killed": store.kill, "paused": store.pause}.get(harm, lambda: None)
                found[harm].append(until_its_end(environ, act))
    return {
        harm: {
            "until its end, least s": round(min(took for took, _ in runs), 2),
            "waited for the store, most s": round(max(waited for _, waited in runs), 2),
        }
        for harm, runs in found.items()
    }


def main() -> None:
    results: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder:
        results["folder"] = second_node(Path(folder), f"file://{folder}/shared")
    available = {
        "Redis": shutil.which("redis-server") and servers.redis,
        "S3 (moto)": importlib.util.find_spec("moto") and servers.s3,
    }
    for name, server in available.items():
        if not server:
            print(f"{name} is not installed: left out", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory() as folder, server() as store:
            results[name] = second_node(Path(folder), store.address)
            if server is servers.redis:
                results["local hit"] = local_hits(Path(folder), store.address)
        results[f"{name} stops answering"] = store_that_ends(server)
    _machine.save("cluster", results)


if __name__ == "__main__":
    main()
