"""Measures repeated builds of public projects' sources in further processes.

``python -m benchmarks.public_again FOLDER [--save]``: FOLDER contains a folder for each project, named
OWNER__PROJECT, with its CUDA sources and their headers at any depth. They are not part of this
repository; FOLDER/projects.json maps each project to its commit, which the results state.

Each source is compiled as it is, `main` and all, with its own folder and its project's folders for
headers (``include``, ``inc``, ``Common``) searched. Many are made by NVCC, and many fail. The first
process begins with an empty cache; ROUNDS processes follow, and each compiles every source. The times
are those of the calls of `rtcompile.compile`; a process's are from the interpreter's start to its end, and
what it took of a processor has its compilers' in it as far as they ended before it.
RTCOMPILE_FALLBACK=never leaves NVCC out.
"""

from __future__ import annotations

import collections
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _machine

ROUNDS = int(os.environ.get("ROUNDS", "3"))
FOR_HEADERS = ("include", "inc", "Common")

CHILD = r"""
import json, sys, time
import rtcompile
for path, options in json.load(sys.stdin):
    with open(path, errors="surrogateescape") as file:
        source = file.read()
    begin = time.perf_counter()
    try:
        build = rtcompile.compile(source, arch="sm_90", options=options, timeout=120).build
        how, cached = build.backend, build.hit in ("disk", "memory")
    except rtcompile.RtcompileError as error:
        how, cached = type(error).__name__, getattr(error, "cached", False)
    print(json.dumps([path, how, cached, (time.perf_counter() - begin) * 1e3]), flush=True)
"""


def requests(folder: Path) -> list[tuple[str, list[str]]]:
    """Return the sources, and the options that each is compiled with."""
    found = []
    for path in sorted(folder.glob("*/**/*.cu")):
        above = [parent for parent in path.parents if folder in parent.parents]
        searched = [path.parent, *(each / name for each in above for name in FOR_HEADERS)]
        options = [f"-I{each.absolute()}" for each in searched if each.is_dir()]
        found.append((str(path.absolute()), ["-std=c++17", *options]))
    return found


class Pass(NamedTuple):
    """A process that compiled all: its seconds, and by source how it was made, cached or not, in what ms."""

    seconds: float
    of_a_processor: float
    found: dict[str, list[Any]]


def run(given: list[tuple[str, list[str]]], cache: str) -> Pass:
    """Compile all in a process."""
    environ = {**os.environ, "RTCOMPILE_CACHE_DIR": cache, "RTCOMPILE_CACHE_SIZE": "100G"}
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        env=environ,
        input=json.dumps(given),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    taken, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = {path: rest for path, *rest in map(json.loads, done.stdout.splitlines())}
    return Pass(taken, spent, found)


def summary(found: list[dict[str, list[Any]]], which: int, names: list[str]) -> dict[str, Any]:
    """Return the milliseconds of some sources in one pass."""
    times = sorted(found[which][name][2] for name in names)
    return {
        "sources": len(names),
        "seconds": round(sum(times) / 1e3, 2),
        "median ms": round(statistics.median(times), 2) if times else None,
        "longest ms": round(times[-1], 1) if times else None,
    }


def measure(folder: Path) -> dict[str, Any]:
    """Compile all in one process after the other; return what the first and the last pass took."""
    given = requests(folder)
    with tempfile.TemporaryDirectory() as cache:
        passes = []
        for number in range(1 + ROUNDS):
            passes.append(run(given, cache))
            print(f"pass {number + 1} of {1 + ROUNDS}: {passes[-1].seconds:.1f} s", file=sys.stderr)
    found = [each.found for each in passes]
    best = min(range(1, len(passes)), key=lambda number: passes[number].seconds)
    groups: dict[str, list[str]] = collections.defaultdict(list)
    for name, (how, _, _) in found[0].items():
        groups["made by " + how if how in ("nvrtc", "nvcc") else "failed"].append(name)
    kinds = collections.Counter(found[0][name][0] for name in groups["failed"])
    known = folder / "projects.json"
    commits = json.loads(known.read_text()) if known.exists() else {}
    count = collections.Counter(
        Path(path).relative_to(folder.absolute()).parts[0] for path, _ in given
    )
    return {
        "sources": len(given),
        "failed, by error": dict(kinds),
        "fallback to NVCC": os.environ.get("RTCOMPILE_FALLBACK", "auto"),
        **{
            f"process, seconds{what}": {
                "first pass": round(times[0], 1),
                "later passes": [round(taken, 2) for taken in times[1:]],
                "ratio of the quickest": round(min(times[1:]) / times[0], 4),
            }
            for what, times in (
                ("", [each.seconds for each in passes]),
                (" of a processor", [each.of_a_processor for each in passes]),
            )
        },
        **{
            f"calls, {group}": {
                "first pass": summary(found, 0, names),
                "later pass": summary(found, best, names),
                "of these found without a compiler": sum(found[best][name][1] for name in names),
            }
            for group, names in [*sorted(groups.items()), ("all", list(found[0]))]
        },
        "by project and commit": [
            f"{project} {commits.get(project, '')[:12]}: {count[name]}"
            for name in sorted(count)
            for project in [name.replace("__", "/")]
        ],
    }


if __name__ == "__main__":
    given = next(word for word in sys.argv[1:] if not word.startswith("-"))
    _machine.save("public_again", measure(Path(given)))
