"""Measures builds of public projects' kernels in order, by rtcompile and by NVRTC in process.

``python -m benchmarks.public_kernels FOLDER [--save]``: FOLDER contains CUDA sources, one per
file, that NVRTC builds with only the toolkit's headers; the file names begin with OWNER__PROJECT--.
They are not part of this repository; FOLDER/projects.json, if it exists, maps each
project to its commit, which the results then state.

Each contender is a process that lives for a round, begins with an empty cache and has built a first
kernel. The two take turns, some kernels each. The times are those of the calls:

- *rtcompile*: `rtcompile.compile`, which looks into the cache, builds in a worker and keeps the code.
- *NVRTC*: CuPy's class that compiles with NVRTC in process. CuPy's cache is left out.

For each kernel the median over the rounds counts. The processor time, for all kernels together, depends
less on other work of the machine. Kernels are grouped by their use of headers: none; words such as
"include" and "import" without reading a header; headers of the toolkit.

ROUNDS sets the number of rounds.
"""

from __future__ import annotations

import collections
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _machine
from rtcompile import toolkit

ROUNDS = int(os.environ.get("ROUNDS", "5"))
IN_TURN = 12  # kernels that a contender builds before it is the other's turn
ARCH = "90"
OPTIONS = ("-std=c++17",)
WORD = re.compile("include|import|embed|pch", re.IGNORECASE)
KINDS = ("no word of headers", "the word, but no header", "headers of the toolkit")

CHILD = r"""
import json, os, resource, sys, time
who, arch, options, folders = json.loads(sys.argv[1])
if who == "rtcompile":
    import rtcompile
    def build(source):
        code = rtcompile.compile(source, arch=f"sm_{arch}", options=options)
        return [header.path for header in code.build.headers]
else:
    from cupy.cuda.compiler import _NVRTCProgram
    options = (f"-arch=sm_{arch}", *options, *(f"-I{folder}" for folder in folders))
    def build(source):
        assert _NVRTCProgram(source, "k.cu", method="cubin").compile(options)[0]
        return []
build('extern "C" __global__ void first(float* x) { x[0] = 1; }')
print("ready", flush=True)
spent = time.process_time()
for line in sys.stdin:
    taken = []
    for source in json.loads(line):
        begin = time.perf_counter()
        read = build(source)
        taken.append(((time.perf_counter() - begin) * 1e3, bool(read)))
    print(json.dumps(taken), flush=True)
spent = time.process_time() - spent
if who == "rtcompile":
    from rtcompile.workers import pool
    pool._pool.close()  # waits for the workers, so that their time counts
children = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([spent * 1e3, (children.ru_utime + children.ru_stime) * 1e3]))
"""


class Contender:
    """A process that builds what it is given."""

    def __init__(self, who: str, folder: str, folders: list[str]) -> None:
        environ = {
            **os.environ,
            "RTCOMPILE_CACHE_DIR": f"{folder}/ours",
            "CUPY_CACHE_DIR": f"{folder}/cupy",
            "CUDA_CACHE_PATH": f"{folder}/{who} driver",
        }
        given = json.dumps([who, ARCH, OPTIONS, folders])
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, given],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def build(self, sources: list[str]) -> list[tuple[float, bool]]:
        """Build the sources; return for each the milliseconds, and whether a header was read."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(sources) + "\n")
        self.process.stdin.flush()
        return [(taken, read) for taken, read in json.loads(self.process.stdout.readline())]

    def close(self) -> list[float]:
        """Return the milliseconds of a processor that the process took, and those of its workers."""
        output, _ = self.process.communicate()
        return list(json.loads(output))


def one_round(
    sources: dict[str, str], number: int, folders: list[str]
) -> tuple[dict[str, dict[str, float]], dict[str, list[float]], dict[str, bool]]:
    """Have both contenders build all.

    Returns the milliseconds by contender and kernel, what each took of a processor, and which kernels
    read a header.
    """
    names = sorted(sources)
    random.Random(number).shuffle(names)
    taken: dict[str, dict[str, float]] = {"rtcompile": {}, "NVRTC": {}}
    read: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as folder:
        contenders = {who: Contender(who, folder, folders) for who in taken}
        for turn, begin in enumerate(range(0, len(names), IN_TURN)):
            some = names[begin : begin + IN_TURN]
            for who in sorted(contenders, reverse=bool((turn + number) % 2)):
                made = contenders[who].build([sources[name] for name in some])
                for name, (milliseconds, did_read) in zip(some, made, strict=True):
                    taken[who][name] = milliseconds
                    if who == "rtcompile":
                        read[name] = did_read
        spent = {who: contender.close() for who, contender in contenders.items()}
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder, exist_ok=True)
    return taken, spent, read


def quartiles(values: list[float], digits: int) -> list[float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(values) < 2:
        return [round(value, digits) for value in values]
    return [round(value, digits) for value in statistics.quantiles(values, n=4)]


def compare(sources: dict[str, str]) -> dict[str, Any]:
    rounds, processor = [], []
    read: dict[str, bool] = {}
    folders = [directory.path for directory in toolkit.current().search]
    for number in range(ROUNDS):
        taken, spent, read = one_round(sources, number, folders)
        rounds.append(taken)
        processor.append(spent)
        print(f"round {number + 1} of {ROUNDS}", file=sys.stderr)
    median = {
        who: {name: statistics.median(r[who][name] for r in rounds) for name in sources}
        for who in ("rtcompile", "NVRTC")
    }
    groups: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for name, source in sources.items():
        groups[KINDS[2] if read[name] else KINDS[bool(WORD.search(source))]].append(name)
    results: dict[str, Any] = {}
    for kind, names in [*groups.items(), ("all", list(sources))]:
        ours = [median["rtcompile"][name] for name in names]
        theirs = [median["NVRTC"][name] for name in names]
        both = list(zip(ours, theirs, strict=True))
        results[kind] = {
            "kernels": len(names),
            "rtcompile ms": quartiles(ours, 1),
            "NVRTC ms": quartiles(theirs, 1),
            "difference ms": quartiles([our - their for our, their in both], 1),
            "ratio": quartiles([our / their for our, their in both], 2),
        }
    ours = [sum(spent["rtcompile"]) / len(sources) for spent in processor]
    theirs = [sum(spent["NVRTC"]) / len(sources) for spent in processor]
    return {
        "rounds": ROUNDS,
        "lower quartile, median, upper quartile": results,
        "processor ms a kernel": {
            "rtcompile with its workers and their start": round(statistics.median(ours), 1),
            "of that the calling process": round(
                statistics.median(spent["rtcompile"][0] for spent in processor) / len(sources), 1
            ),
            "NVRTC": round(statistics.median(theirs), 1),
        },
    }


def main() -> None:
    folder = Path(next(word for word in sys.argv[1:] if not word.startswith("-")))
    sources = {path.name: path.read_text() for path in sorted(folder.glob("*.cu"))}
    of = collections.Counter(name.split("--")[0].replace("__", "/") for name in sources)
    known = folder / "projects.json"
    commits = json.loads(known.read_text()) if known.exists() else {}
    projects = [
        f"{project} {commits.get(project, '')[:12]}: {count}"
        for project, count in sorted(of.items())
    ]
    _machine.save("public_kernels", {**compare(sources), "kernels by project and commit": projects})


if __name__ == "__main__":
    main()
