"""One compile for all: 64 processes on 4 nodes that want the same kernels at the same moment.

A node is a home, a cache and locks of its own; the nodes share a store. All processes are started,
have imported everything and built a small kernel of their own before any begins: what is measured is
the wait from the common begin to each process's result. It stands beside the time that one such
process takes alone, without a store; and, since the machine may have other work to do then, beside
the wait of the process of the same run that compiled.

- One kernel, whose compile takes seconds.
- Twenty kernels, which each process asks for one after the other.

Needs redis-server for the stores on Redis; a folder is the other one. ``--save`` writes
benchmarks/results/cluster_once.json. NODES and EACH set the number of nodes and of processes on each,
STORES the stores (``redis,folder``). No GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import _machine
from tests import nodes, servers

NODES = int(os.environ.get("NODES", "4"))
EACH = int(os.environ.get("EACH", "16"))
STORES = os.environ.get("STORES", "redis,folder").split(",")
_AT_ONCE = 8  # processes that are started at once

PROGRAM = r"""
import json, sys, time
told = json.loads(sys.stdin.readline())
import rtcompile
own = 'extern "C" __global__ void own(int* out) { out[0] = %d; }'
rtcompile.compile(own % told["number"], arch="sm_80")  # the modules, the connection, a worker
print("{}", flush=True)
at = float(sys.stdin.readline())
time.sleep(max(0.0, at - time.time()))
begin, computed = time.perf_counter(), time.process_time()
codes = [rtcompile.compile(source, arch="sm_80") for source in told["sources"]]
seconds = time.perf_counter() - begin
hits = [code.build.hit for code in codes]
computed = time.process_time() - computed
print(json.dumps({"hits": hits, "seconds": seconds, "computed": computed}), flush=True)
"""


def heavy(number: int, weight: int) -> str:
    """Return a source whose compile takes 0.2 s with a `weight` of 250, and 2 s with 1,200."""
    lines = "".join(
        f"  x = x * {1 + n % 7}.{n}f + y; if (x > {n}.5f) y += p[(int)x & {n % 63}];\n"
        for n in range(weight)
    )
    return (
        f'extern "C" __global__ void k(float* p) {{\n  float x = p[threadIdx.x], y = {number};\n'
        f"{lines}  p[threadIdx.x] = x + y;\n}}\n"
    )


def run(environments: list[dict[str, str]], sources: list[str]) -> list[dict[str, object]]:
    """Return what the processes say, one of each environment, which begin at one moment."""
    running: list[subprocess.Popen[str]] = []
    for first in range(0, len(environments), _AT_ONCE):
        for environ in environments[first : first + _AT_ONCE]:
            process = _start({**os.environ, **environ})
            _tell(process, {"number": len(running), "sources": sources})
            running.append(process)
        for process in running[first:]:
            _hear(process)
    time.sleep(1.0)  # until all are at rest
    begin = time.time() + 0.5
    for process in running:
        _tell(process, begin)
    found = [_hear(process) for process in running]
    for process in running:
        process.communicate(timeout=60)
    return found


def _start(environ: dict[str, str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    # The store's machine is another one: it does not wait for a processor here.
    command = ["nice", "-n", "10", sys.executable, "-c", PROGRAM]
    return subprocess.Popen(command, env=environ, stdin=pipe, stdout=pipe, text=True)


def _tell(process: subprocess.Popen[str], what: object) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()


def _hear(process: subprocess.Popen[str]) -> dict[str, object]:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "a process ended before its result"
    said: dict[str, object] = json.loads(line)
    return said


def alone(sources: list[str], times: int = 3) -> float:
    """Return what one process takes that is alone and has no store, in seconds."""
    taken = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            environ = {**nodes.environment(Path(folder), "alone", ""), "RTCOMPILE_REMOTE": ""}
            taken.append(float(run([environ], sources)[0]["seconds"]))  # type: ignore[arg-type]
    return statistics.median(taken)


@contextlib.contextmanager
def store(name: str, folder: Path) -> Iterator[tuple[str, servers.Server | None]]:
    if name == "folder":
        yield f"file://{folder}/shared", None
    else:
        with servers.redis() as server:
            yield server.address, server


def together(name: str, sources: list[str], one: float) -> dict[str, object]:
    """Measure all processes, with a store of one kind."""
    with tempfile.TemporaryDirectory() as text, store(name, Path(text)) as (address, server):
        folder = Path(text)
        environments = [
            nodes.environment(folder, f"node{number}", address)
            for number in range(NODES)
            for _ in range(EACH)
        ]
        found = run(environments, sources)
        asked = _asked(server)
    hits = [hit for each in found for hit in each["hits"]]  # type: ignore[attr-defined]
    waits = sorted(float(each["seconds"]) for each in found)  # type: ignore[arg-type]
    builder = max(found, key=lambda each: each["hits"].count(None))  # type: ignore[attr-defined]
    built = float(builder["seconds"])  # type: ignore[arg-type]
    return {
        "compiles": hits.count(None),
        "fetched from the store": hits.count("remote"),
        "one process alone, s": round(one, 3),
        "median wait, s": round(statistics.median(waits), 3),
        "longest wait, s": round(waits[-1], 3),
        "(longest - 0.1) / alone": round((waits[-1] - 0.1) / one, 3),
        "wait of who compiled most, s": round(built, 3),
        "(longest - 0.1) / who compiled": round((waits[-1] - 0.1) / built, 3),
        "processor's time of the median process, s": round(
            statistics.median(float(each["computed"]) for each in found),  # type: ignore[arg-type]
            3,
        ),
        **asked,
    }


def _asked(server: servers.Server | None) -> dict[str, object]:
    """Return how often the store was asked for a lease and for an entry, own kernels included."""
    if server is None:
        return {}
    import redis

    with contextlib.closing(redis.Redis(port=server.port)) as client:
        stats = client.info("commandstats")
    return {
        f"{name} commands": stats[f"cmdstat_{name}"]["calls"]
        for name in ("get", "set")
        if f"cmdstat_{name}" in stats
    }


def main() -> None:
    one = [heavy(0, 1200)]
    twenty = [heavy(number, 250) for number in range(20)]
    alone_one, alone_twenty = alone(one), alone(twenty)
    results: dict[str, object] = {"nodes": NODES, "processes on each": EACH}
    for name in STORES:
        if name == "redis" and shutil.which("redis-server") is None:
            print("redis-server is not installed: left out", file=sys.stderr)
            continue
        results[name] = {
            "one kernel": together(name, one, alone_one),
            "twenty kernels": together(name, twenty, alone_twenty),
        }
    _machine.save("cluster_once", results)


if __name__ == "__main__":
    main()
