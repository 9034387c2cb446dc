"""Measures hits of cached kernels through each door and in each spelling of options.

A *door* is a function or class that programs use: `compile`, `compile_many`, `RawKernel`, `RawModule`, CuPy's
own classes after `install()`, a ``%%cuda`` cell. Their kernels are in the cache, which they filled themselves;
or in a bundle made of a record of all of them, beside an empty cache ("from a bundle"); or in a cache that
`rtcompile warm` filled from this record ("from a record"). Each row is a fresh process, and all rows take turns
in one run; the quickest of them counts, since a machine does more besides. The columns are parts of that
process: the import, the first hit with it, each further hit (other kernels; their median), and the same request
again (its median). A kernel class is made and its function taken, which with a GPU loads the code; without one
CuPy gets a device that takes code and loads nothing.

Then: the same for kernels with headers, after a kernel without headers was requested; and the number of
functions and modules of rtcompile that a call uses.

Without a GPU: ``ROUNDS=3 python -m benchmarks.doors --save NAME``. ``--save NAME`` writes
benchmarks/results/NAME.json, ``--table BEFORE.json [AFTER.json]`` prints files as tables. ROWS is a regular
expression that a row's name has to contain. ROUNDS sets the number of rounds, LIMIT the seconds after which no
further round is begun that would outlast them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import _machine
from tests.doors import CAPABILITY, TAKES, WITHOUT_CUPY

ROUNDS = int(os.environ.get("ROUNDS", "7"))
LIMIT = float(os.environ.get("LIMIT", "inf"))
ROWS = re.compile(os.environ.get("ROWS", ""))
FURTHER, AGAIN = 20, 100
ROOT = Path(__file__).parents[1]

# It imports nothing before the clock starts, and counts functions on request.
CHILD = r"""
import sys, time
job = eval(sys.argv[1])
sys.path.insert(0, job["root"])
from tests import doors
gpu = job["gpu"]
if job["cupy"]:
    import warnings
    warnings.simplefilter("ignore")
    import cupy
    if gpu:
        x = cupy.arange(64, dtype=cupy.float32)
        x += 1  # the context, and one kernel of CuPy's own
        cupy.cuda.Device().synchronize()
    else:
        doors.pretend_device()
if job["door"] == "cell":
    import IPython.core.interactiveshell
    sys.stdout = open("/dev/null", "w")
def counted(build):
    if not job["count"]:
        return build()
    counts.append(dict(zip(("functions", "modules", "calls"), doors.passed(build))))
counts = []
options, more = job["options"], job["more"]
since = time.perf_counter()
build = doors.door(job["door"], False)
imported = time.perf_counter()
spans = []
for source in job["sources"]:
    begin = time.perf_counter()
    counted(lambda: build(source, options, **more))
    spans.append((time.perf_counter() - begin) * 1e3)
again = []
for _ in range(job["again"]):
    begin = time.perf_counter()
    counted(lambda: build(source, options, **more))
    again.append((time.perf_counter() - begin) * 1e6)
result = {"import": (imported - since) * 1e3, "spans": spans, "again": again, "counts": counts,
          "modules": len(sys.modules)}
print(result, file=sys.__stdout__)
"""

# Requests all kernels of all rows, to record them.
PROGRAM = r"""
import sys
sys.path.insert(0, {root!r})
from tests import doors
if not {gpu!r}:
    doors.pretend_device()
opened = {{}}
out, sys.stdout = sys.stdout, open("/dev/null", "w")
for job in {jobs!r}:
    door = job["door"]
    if door not in opened:
        opened[door] = doors.door(door, False)
    for source in job["sources"]:
        try:
            opened[door](source, job["options"], **job["more"])
        except Exception:
            break
sys.stdout = out
"""

# The architecture that the device gets.
ARCH = """import rtcompile; print(rtcompile.RawKernel("__global__ void k() {}", "k").object_code.arch)"""

# Where kernels come from, if not from the processes themselves, and the cache of those that request them.
KEPT = {"from a bundle": "empty", "from a record": "warmed"}
BUNDLE = "kernels.rtcb"

PLAIN = """extern "C" __global__ void k(float* x) { x[threadIdx.x] += %d.0f; }"""
TEMPLATE = """template <class T> __global__ void k(T* x) { x[threadIdx.x] += %d; }"""
KERNELS = {
    "a header of its own": '#include "own.h"\n' + PLAIN,
    "WMMA": "#include <mma.h>\n" + PLAIN,
    "CuTe, 392 headers": "#include <cute/tensor.hpp>\n" + PLAIN,
}
OPTIONS = ("-DTILE=16", "--use_fast_math")


def spellings(folder: Path, arch: str) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return options and further arguments by the name of each spelling; write what they name."""
    foreign = folder / "Köpfe"
    foreign.mkdir(exist_ok=True)
    return {
        "tuple": (OPTIONS, {}),
        "list": (list(OPTIONS), {}),
        "str": (" ".join(OPTIONS), {}),
        "jitify=False": (OPTIONS, {"jitify": False}),
        "jitify=True": (OPTIONS, {"jitify": True}),
        "arch=": (OPTIONS, {"arch": arch}),
        "pch=": (OPTIONS, {"pch": True}),
        "timeout=": (OPTIONS, {"timeout": 60.0}),
        "fallback=": (OPTIONS, {"fallback": "auto"}),
        "name_expressions": (OPTIONS, {"name_expressions": ["k<float>"]}),
        "headers=": (OPTIONS, {"headers": {"tile.cuh": "#define TILE 4\n"}}),
        "a relative -I": ((*OPTIONS, "-Iinclude"), {}),
        "a non-ASCII -I": ((*OPTIONS, f"-I{foreign}"), {}),
    }


def jobs(folder: Path, arch: str, gpu: bool) -> dict[str, dict[str, Any]]:
    """Return what each process does, by the name of its row."""
    found: dict[str, dict[str, Any]] = {}
    common = {"root": str(ROOT), "gpu": gpu, "count": False}
    contexts = [("without CuPy", door) for door in WITHOUT_CUPY]
    contexts += [(context, door) for context in ("with CuPy", *KEPT) for door in TAKES]
    for context, door in contexts:
        cupy = context != "without CuPy"
        common = {**common, "kept": KEPT.get(context, "")}
        for spelling, (options, more) in spellings(folder, arch).items():
            # CuPy accepts only tuples; a cell has one line of options.
            fits = {"install": tuple, "cell": (str, tuple)}.get(door, (str, list, tuple))
            if not isinstance(options, fits) or not more.keys() <= TAKES[door]:
                continue
            if door == "cell":
                if spelling == "tuple":
                    continue
                options = options if isinstance(options, str) else shlex.join(options)
            if not cupy:
                more = {**more, "arch": arch}
            source = TEMPLATE if spelling == "name_expressions" else PLAIN
            found[f"{context}: {door}, {spelling}"] = {
                **common,
                "cupy": cupy,
                "door": door,
                "options": options,
                "more": more,
                "sources": [source % (2 * n + 3) for n in range(1 + FURTHER)],
                "again": AGAIN,
            }
        own = (*OPTIONS, f"-I{folder}")
        for kernel, source in KERNELS.items():
            found[f"{context}: {door}, {kernel}"] = {
                **common,
                "cupy": cupy,
                "door": door,
                "options": shlex.join(own) if door == "cell" else own,
                "more": {} if cupy else {"arch": arch},
                "sources": [PLAIN % 1, source % 5, source % 7],
                "again": 50,
            }
    return {row: job for row, job in found.items() if ROWS.search(row)}


class RefusedError(Exception):
    """A door does not take what it was given; the text is its error."""


def keep(every: dict[str, dict[str, Any]], folder: Path, gpu: bool) -> None:
    """Record what the rows request that get it from a bundle or a record, and make both of it."""
    kept = [job for job in every.values() if job["kept"]]
    if not kept:
        return
    script, record = folder / "program.py", folder / "kernels.json"
    script.write_text(PROGRAM.format(root=str(ROOT), gpu=gpu, jobs=kept))
    bundle = ("bundle", str(record), "-o", str(folder / BUNDLE), "--skip-unbundleable")
    for cache, *command in (
        ("recorded", "run", "--record", str(record), str(script)),
        ("recorded", *bundle),
        (KEPT["from a record"], "warm", str(record)),
    ):
        subprocess.run(
            [sys.executable, "-m", "rtcompile", *command],
            env={**environment(str(folder / cache)), "PYTHONPATH": str(ROOT)},
            cwd=folder,
            stdout=sys.stderr,
            check=True,
        )


def environment(cache: str) -> dict[str, str]:
    return {**os.environ, "RTCOMPILE_CACHE_DIR": cache, "CUPY_CACHE_DIR": f"{cache}-of-cupy"}


def run(job: dict[str, Any], folder: Path, cache: str) -> dict[str, Any]:
    """Run one process; return what it measured."""
    environ = environment(str(folder / job["kept"]) if job["kept"] else cache)
    if job["kept"]:
        environ["RTCOMPILE_JIT"] = "0"  # a missing build is an error, and the row is left out
    if job["kept"] == KEPT["from a bundle"]:
        environ["RTCOMPILE_BUNDLES"] = str(folder / BUNDLE)
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, repr(job)],
        env=environ,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    wall = (time.perf_counter() - begin) * 1e3
    if done.returncode:
        raise RefusedError(done.stderr.strip().splitlines()[-1])
    measured: dict[str, Any] = eval(done.stdout.splitlines()[-1])
    return {**measured, "whole": wall}


def columns(job: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return a row of the table from all runs of a process."""

    def least(values: Any) -> float:
        return round(min(values), 3)

    again = least(statistics.median(run["again"]) for run in runs)
    if len(job["sources"]) == 3:  # headers: the first kernel with them, and another one
        return {
            "first with these headers ms": least(run["spans"][1] for run in runs),
            "further hit ms": least(run["spans"][2] for run in runs),
            "again us": again,
        }
    return {
        "whole process ms": least(run["whole"] for run in runs),
        "import ms": least(run["import"] for run in runs),
        "first hit ms": least(run["spans"][0] for run in runs),
        "import and first hit ms": least(run["import"] + run["spans"][0] for run in runs),
        "further hit ms": least(statistics.median(run["spans"][1:]) for run in runs),
        "again us": again,
        "modules": runs[0]["modules"],
    }


def counts(folder: Path, arch: str, gpu: bool, works: set[str]) -> dict[str, dict[str, int]]:
    """Return the functions, modules and calls of rtcompile for each request and door that works."""
    found: dict[str, dict[str, int]] = {}
    for context, door in [("without CuPy", "compile"), *(("with CuPy", d) for d in TAKES)]:
        cupy = context == "with CuPy"
        if f"{context}: {door}" not in works:
            continue
        job = {
            "root": str(ROOT),
            "gpu": gpu,
            "count": True,
            "kept": "",
            "cupy": cupy,
            "door": door,
            "options": "-DTILE=16" if door == "cell" else ("-DTILE=16",),
            "more": {} if cupy else {"arch": arch},
            "sources": [PLAIN % 1],
            "again": 5,
        }
        with tempfile.TemporaryDirectory() as cache:
            # The toolchain is known, as it is after the first kernel of a machine.
            run({**job, "sources": [PLAIN % 2], "count": False}, folder, cache)
            cold = run(job, folder, cache)["counts"]
            disk = run(job, folder, cache)["counts"]
        found[f"{context}: {door}, cold build"] = cold[0]
        found[f"{context}: {door}, hit from disk"] = disk[0]
        found[f"{context}: {door}, again"] = disk[-1]
    return found


def measure() -> dict[str, Any]:
    begin = time.monotonic()
    gpu = _machine.gpus() > 0
    arch = f"sm_{''.join(map(str, CAPABILITY))}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "include").mkdir()
        (folder / "own.h").write_text("#define OWN 1\n")
        cache = str(folder / "cache")
        if gpu:
            arch = subprocess.run(
                [sys.executable, "-c", ARCH], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout.strip()
        every = jobs(folder, arch, gpu)
        runs: dict[str, list[dict[str, Any]]] = {row: [] for row in every}
        refused: dict[str, str] = {}
        keep(every, folder, gpu)

        def build(row: str) -> None:
            """Build the kernels of a row that are missing, or note why they cannot be."""
            try:
                run({**every[row], "again": 1}, folder, cache)
            except RefusedError as error:
                refused[row] = str(error)

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(build, every))
        every = {row: job for row, job in every.items() if row not in refused}
        functions = counts(folder, arch, gpu, {row.split(",")[0] for row in every})
        rounds, longest = 0, 0.0
        while rounds < ROUNDS and time.monotonic() - begin + longest < LIMIT:
            since = time.monotonic()
            for row in list(every) if rounds % 2 else list(every)[::-1]:
                runs[row].append(run(every[row], folder, cache))
            rounds += 1
            longest = max(longest, time.monotonic() - since)
            print(f"round {rounds} of {ROUNDS}: {longest:.0f} s at most each", file=sys.stderr)
        return {
            "rounds": rounds,
            "loaded": gpu,
            "rows": {row: columns(every[row], runs[row]) for row in every},
            "refused": refused,
            "functions": functions,
        }


def worst(rows: dict[str, dict[str, float]]) -> dict[str, str]:
    """Return the goals of the matrix: the worst row of each, for kernels without includes."""
    found: dict[str, str] = {}
    plain = {row: values for row, values in rows.items() if "import ms" in values}
    for title, column, wanted in (
        ("without CuPy, import and first hit of compile(), ms", "import and first hit ms", "t: c"),
        ("with CuPy, import, ms", "import ms", "h C"),
        ("with CuPy, first hit, ms", "first hit ms", "h C"),
        ("with CuPy, each further hit, ms", "further hit ms", "h C"),
        ("from a bundle, first hit, ms", "first hit ms", "from a bundle:"),
        ("from a bundle, each further hit, ms", "further hit ms", "from a bundle:"),
        ("from a record, first hit, ms", "first hit ms", "from a record:"),
        ("from a record, each further hit, ms", "further hit ms", "from a record:"),
        ("each further hit of compile(), ms", "further hit ms", ": compile,"),
        ("compile() again, us", "again us", ": compile,"),
        ("a kernel again, us", "again us", ": Raw"),
        ("a cell, each further hit, ms", "further hit ms", "with CuPy: cell"),
        ("a cell again, us", "again us", "with CuPy: cell"),
    ):
        times = {
            row: values[column]
            for row, values in plain.items()
            if _belongs(row, wanted) and (": cell" in row) == (": cell" in wanted)
        }
        if not times:
            continue
        row = max(times, key=lambda each: times[each])
        least = min(times.values())
        found[title] = f"{times[row]:.3f} ({row}); the best {least:.3f}"
    return found


def _belongs(row: str, wanted: str) -> bool:
    if wanted == "t: c":
        return row.startswith("without CuPy: compile,")
    if wanted == "h C":
        return row.startswith("with CuPy")
    return wanted in row and (wanted.startswith("from") or not row.startswith("from"))


def table(before: dict[str, Any], after: dict[str, Any] | None) -> str:
    """Return one or two results as tables: a cell with two figures is before and after."""
    files = [before] if after is None else [before, after]
    lines = []
    for part in ("rows", "functions"):
        groups: dict[tuple[str, ...], list[str]] = {}
        for row, values in before["results"][part].items():
            groups.setdefault(tuple(values), []).append(row)
        for names, rows in groups.items():
            lines += ["", f"| | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
            for row in rows:
                found = [file["results"][part].get(row, {}) for file in files]
                cells = [" → ".join(f"{f.get(n, '-')}" for f in found) for n in names]
                lines.append(f"| {row} | {' | '.join(cells)} |")
    lines += [f"{row}: {why}" for file in files for row, why in file["results"]["refused"].items()]
    lines += ["", f"| worst row |{' | '.join(['before', 'after'][: len(files)])} |"]
    lines.append(f"| --- |{' --- |' * len(files)}")
    worsts = [worst(file["results"]["rows"]) for file in files]
    lines += [
        f"| {title} | {' | '.join(w.get(title, '-') for w in worsts)} |" for title in worsts[0]
    ]
    return "\n".join(lines)


def main() -> None:
    if "--table" in sys.argv:
        paths = sys.argv[sys.argv.index("--table") + 1 :]
        files = [json.loads(Path(path).read_text()) for path in paths]
        print(table(files[0], files[1] if len(files) > 1 else None))
        return
    name = sys.argv[sys.argv.index("--save") + 1] if "--save" in sys.argv else "doors"
    _machine.save(name, measure())


if __name__ == "__main__":
    main()
