"""Measures one compile for all: 64 processes on 4 nodes that request the same kernels at once.

A node has its own home, cache and locks; the nodes share a store. Before the common begin all processes
have finished their imports and built a small kernel of their own. The wait from the begin to each
process's result is measured. It is compared with the time of a single process without a store, and, since
other programs may disturb the machine, with the wait of the process of the same run that compiled.

- One kernel, whose compile takes seconds.
- Twenty kernels, which each process requests in order.

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
task = json.loads(sys.stdin.readline())
import rtcompile
own = 'extern "C" __global__ void own(int* out) { out[0] = %d; }'
rtcompile.compile(own % task["number"], arch="sm_80")  # the modules, the connection, a worker
print("{}", flush=True)
at = float(sys.stdin.readline())
time.sleep(max(0.0, at - time.time()))
begin, computed = time.perf_counter(), time.process_time()
codes = [rtcompile.compile(source, arch="sm_80") for source in task["sources"]]
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
    """Return the output of one process for each environment; all begin at once."""
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
    result: dict[str, object] = json.loads(line)
    return result


def single(sources: list[str], times: int = 3) -> float:
    """Return the seconds that a single process takes without a store."""
    taken = []
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            environ = {**nodes.environment(Path(folder), "single", ""), "RTCOMPILE_REMOTE": ""}
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
        requests = _requests(server)
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
        **requests,
    }


def _requests(server: servers.Server | None) -> dict[str, object]:
    """Return how often leases and entries were requested from the store, including the processes' own kernels."""
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
    single_one, single_twenty = single(one), single(twenty)
    results: dict[str, object] = {"nodes": NODES, "processes on each": EACH}
    for name in STORES:
        if name == "redis" and shutil.which("redis-server") is None:
            print("redis-server is not installed: left out", file=sys.stderr)
            continue
        results[name] = {
            "one kernel": together(name, one, single_one),
            "twenty kernels": together(name, twenty, single_twenty),
        }
    _machine.save("cluster_once", results)


if __name__ == "__main__":
    main()
