"""Measures repeated builds of sources that fail, each in a separate process.

``python -m benchmarks.failing [--save]``. The sources are those of `tests.provoked` and
`tests.mistakes` that a compiler or linker rejects here, without those whose limits end the build. The
first process of a source begins with an empty cache; ROUNDS processes follow. The times are those of
the call of `rtcompile.compile` until its error, and the processor time including the compiler's.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks import _machine
from tests.mistakes import MISTAKES
from tests.provoked import BY_KERNELS

ROUNDS = int(os.environ.get("ROUNDS", "3"))
SOURCES = int(os.environ.get("SOURCES", "1000"))  # at most so many are tried

CHILD = r"""
import json, resource, sys, time
import rtcompile
given = json.loads(sys.argv[1])
begin = time.perf_counter()
try:
    rtcompile.compile(**given)
    kind = ""
except rtcompile.RtcompileError as error:
    kind = type(error).__name__
taken = (time.perf_counter() - begin) * 1e3
pool = sys.modules.get("rtcompile.workers.pool")
if pool is not None and pool._pool is not None:
    pool._pool.close()  # waits for the workers, so that their time counts
spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps([kind, taken, sum(r.ru_utime + r.ru_stime for r in spent) * 1e3]))
"""


def requests() -> list[dict[str, Any]]:
    """Return the arguments of builds; most of them fail."""
    found = [
        {
            "source": each.source,
            "options": each.options,
            "name_expressions": each.names,
            "arch": each.arch,
        }
        for each in MISTAKES
        if each.timeout is None
    ]
    for case in BY_KERNELS:
        provoked = case.values[1]
        if not (provoked.seconds or provoked.memory or provoked.bare or provoked.headers):
            found.append(
                {
                    "source": provoked.source,
                    "options": provoked.options.split(),
                    "name_expressions": provoked.names,
                    "arch": provoked.arch,
                }
            )
    return [{**each, "timeout": 20} for each in found]


def run(given: dict[str, Any], cache: str) -> tuple[str, float, float]:
    """Return the kind of a build's error and its milliseconds, in all and of a processor."""
    environ = {**os.environ, "RTCOMPILE_CACHE_DIR": cache}
    command = [sys.executable, "-c", CHILD, json.dumps(given)]
    done = subprocess.run(command, env=environ, check=True, capture_output=True, text=True)
    kind, taken, spent = json.loads(done.stdout)
    return kind, taken, spent


def measure() -> dict[str, object]:
    """Return what the passes took, as medians over the sources that fail."""
    passes: list[list[tuple[float, float]]] = [[] for _ in range(1 + ROUNDS)]
    kinds: list[str] = []
    with tempfile.TemporaryDirectory() as cache:
        run({"source": "__global__ void k() {}", "arch": "sm_80"}, cache)  # the toolkit is known
        for given in requests()[:SOURCES]:
            kind, *first = run(given, cache)
            if kind in ("CompileError", "LinkError"):
                kinds.append(kind)
                passes[0].append((first[0], first[1]))
                for later in passes[1:]:
                    later.append(run(given, cache)[1:])
    again = [each for later in passes[1:] for each in later]
    return {
        "sources": len(kinds),
        "kinds": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "rounds": ROUNDS,
        **{
            f"{which} pass, {what}": {
                "median": round(statistics.median(each[at] for each in times), 1),
                "mean": round(statistics.mean(each[at] for each in times), 1),
            }
            for which, times in (("first", passes[0]), ("later", again))
            for at, what in enumerate(("ms of the call", "ms of a processor"))
        },
    }


if __name__ == "__main__":
    _machine.save("failing", measure())
