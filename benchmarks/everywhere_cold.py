"""Measures cold compiles of a record's kernels in order, as CuPy requests them. Needs no GPU.

``python -m benchmarks.everywhere_cold kernels.json [--save] [--each]``: a record of
``rtcompile run --record``. NVRTC in process, as CuPy calls it; rtcompile with an empty cache; with only
the precompiled headers cached; and ``rtcompile warm``, many at once. Every contender is a fresh
process, they take turns, and the figures are those of the whole process, less the start of an
interpreter. All code must be the same, byte by byte. ROUNDS sets the number of rounds.

``--parts`` measures where a kernel's time goes instead: kernels in turns, by NVRTC in process, by rtcompile
without a precompiled header, and with existing headers, by the phases that the compiler reports.
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
from pathlib import Path
from typing import Any

from benchmarks import _machine
from rtcompile.extras.record import recording

ROUNDS = int(os.environ.get("ROUNDS", "3"))

CHILD = r"""
import json, sys, time
begin = time.perf_counter()
with open(sys.argv[1]) as file:
    task = json.load(file)
import hashlib
each, digests = [], []
def digest(code):  # CuPy takes a NUL off the end
    return hashlib.sha256(bytes(code).rstrip(b"\0")).hexdigest()
if sys.argv[2] == "warm":
    from rtcompile.extras.record import recording
    codes = recording.warm(recording.read(task["record"]), progress=False)
    digests = [digest(code.code) for code in codes]
else:
    # What a CuPy without a device needs to get as far as its compiler.
    from cupy.cuda import compiler, function
    class Module:
        def load(self, code): digests.append(digest(code))
        def _set_mapping(self, mapping): pass
    function.Module = Module
    compiler._get_arch_for_options_for_nvrtc = lambda arch=None: ("-arch=sm_" + arch, "cubin")
    if sys.argv[2] == "rtcompile":
        import rtcompile
        assert rtcompile.install().active
    for b in task["builds"]:
        started = time.perf_counter()
        compiler._compile_module_with_cache(b["source"], tuple(b["options"]), arch=b["arch"])
        each.append(time.perf_counter() - started)
print(json.dumps({"seconds": time.perf_counter() - begin, "each": each, "digests": digests}))
"""


def run(task: Path, who: str, cache: Path) -> dict[str, list[float]]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(task), who],
        env={
            **os.environ,
            "RTCOMPILE_CACHE_DIR": str(cache),
            "CUPY_CACHE_DIR": str(cache / "cupy"),
            "CUDA_CACHE_PATH": str(cache / "driver"),  # NVRTC looks into it, too
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, list[float]] = json.loads(done.stdout)
    return result


def forget_builds(cache: Path) -> None:
    """Leave only the precompiled headers in a cache, where they are: a copy would be another file."""
    for part in ("index", "objects", "records"):
        shutil.rmtree(cache / part, ignore_errors=True)


def builds_of(path: str) -> list[dict[str, Any]]:
    """Return a record's builds as this CuPy would request them, with its own directories."""
    from cupy._core import core

    builds = []
    for entry in recording.read(path).builds:
        request = entry.request
        options = [o for o in request.options if not o.startswith("-I") and o != "-ftz=true"]
        given = () if options == ["--std=c++17"] else tuple(options)
        builds.append(
            {
                "source": request.source,
                "options": core.assemble_cupy_compiler_options(given),
                "arch": str(entry.arch).removeprefix("sm_"),
                "name": request.name,
            }
        )
    return builds


# Kernels take turns, so other work of the machine affects all contenders equally.
PARTS = r"""
import json, os, statistics, sys, time
with open(sys.argv[1]) as file:
    builds = json.load(file)["builds"]
from cupy.cuda import compiler, function
class Module:
    def load(self, code): pass
    def _set_mapping(self, mapping): pass
function.Module = Module
compiler._get_arch_for_options_for_nvrtc = lambda arch=None: ("-arch=sm_" + arch, "cubin")
import rtcompile
from rtcompile.compilers import nvrtc
by_cupy = compiler._compile_using_nvrtc_no_warning
assert rtcompile.install().active
reused = []
def noted(*given, run=nvrtc._run):
    found = run(*given)
    reused.append(found[1] is not None)
    spans.update(found[0].milliseconds)
    return found
nvrtc._run = noted
spans = {}
def request_of(b, number):
    # A comment at the end makes it another source, that is not cached.
    source = b["source"] + f"\n// {os.getpid()} {number}"
    return source, tuple(b["options"]), b["arch"]
rows = []
EMPTY = {"source": 'extern "C" __global__ void k() {}', "options": ["--std=c++17"], "arch": "90",
         "name": "an empty kernel"}
OPENING = {**builds[0], "source": builds[0]["source"].partition("\n\n")[0] + '\n\nextern "C" __global__ void k() {}',
           "name": "CuPy's headers and an empty kernel"}
for number, b in enumerate([EMPTY, OPENING, *builds]):
    row = {"name": b["name"], "in process": [], "without": [], "with": [], "phases": []}
    for turn in range(int(sys.argv[2])):
        source, options, arch = request_of(b, f"{number} {turn} p")
        started = time.perf_counter()
        by_cupy(source, (*options, "-ftz=true"), arch, "kernel.cu", None, None, False, False)
        row["in process"].append(time.perf_counter() - started)
        for way, pch in (("without", "0"), ("with", "1")):
            os.environ["RTCOMPILE_PCH"] = pch
            source, options, arch = request_of(b, f"{number} {turn} {way}")
            spans.clear(), reused.clear()
            started = time.perf_counter()
            compiler._compile_module_with_cache(source, options, arch=arch)
            row[way].append(time.perf_counter() - started)
            if way == "with":
                row["reused"] = reused[-1]
                row["phases"].append({p: ms / 1000 for p, ms in spans.items()})
    rows.append(row)
print(json.dumps(rows))
"""
PHASES = ("front end", "optimizer", "ptxas")


def parts(task: Path, cache: Path) -> None:
    """Measure each kernel by each method, and the compiler's phases with existing headers."""
    done = subprocess.run(
        [sys.executable, "-c", PARTS, str(task), str(ROUNDS)],
        env={
            **os.environ,
            "RTCOMPILE_CACHE_DIR": str(cache),
            "CUDA_CACHE_PATH": str(cache / "driver"),
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )

    def milliseconds(values: list[float]) -> float:
        return round(1e3 * statistics.median(values), 1)

    table = []
    for row in json.loads(done.stdout):
        phases = {phase: milliseconds([each[phase] for each in row["phases"]]) for phase in PHASES}
        table.append(
            {
                "kernel": row["name"],
                "header reused": row["reused"],
                "NVRTC in process, ms": milliseconds(row["in process"]),
                "rtcompile without a header, ms": milliseconds(row["without"]),
                "with the header, ms": milliseconds(row["with"]),
                **{f"of it the {phase}, ms": of for phase, of in phases.items()},
            }
        )
    kernels = table[2:]
    sums = {
        name: round(sum(row[name] for row in kernels), 1)  # type: ignore[misc]
        for name, value in kernels[0].items()
        if isinstance(value, float)
    }
    base = sums["NVRTC in process, ms"]
    floor = sum(sums[f"of it the {phase}, ms"] for phase in PHASES)
    results = {
        "kernels": len(kernels),
        "header not reused": [row["kernel"] for row in kernels if not row["header reused"]],
        "all of them": sums,
        "with the header, to NVRTC in process": round(sums["with the header, ms"] / base, 3),
        "the compiler's phases alone, to NVRTC in process": round(floor / base, 3),
        "optimizer and ptxas alone, to NVRTC in process": round(
            (floor - sums["of it the front end, ms"]) / base, 3
        ),
        "each": table,
    }
    _machine.save("everywhere_cold_parts_cpu", results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--each", action="store_true", help="print the milliseconds of each kernel")
    parser.add_argument("--parts", action="store_true", help="where each kernel's time goes")
    parser.add_argument("--only", nargs="*", help="contenders to run, by their first letters")
    given = parser.parse_args()
    builds = builds_of(given.record)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        task = here / "task.json"
        task.write_text(json.dumps({"builds": builds, "record": given.record}))
        in_place = here / "in place"
        contenders = {
            "CuPy alone": ("CuPy", None),
            "rtcompile, cold": ("rtcompile", None),
            "rtcompile, headers in place": ("rtcompile", in_place),
            "rtcompile warm": ("warm", None),
        }
        if given.only:
            contenders = {
                name: how
                for name, how in contenders.items()
                if any(name.startswith(only) for only in given.only)
            }
        times: dict[str, list[float]] = {}
        each: dict[str, list[list[float]]] = {}
        digests: dict[str, list[str]] = {}
        run(task, "rtcompile", in_place)
        for _ in range(
            2
        ):  # a prefix that few kernels share has its header made beside the second build
            forget_builds(in_place)
            run(task, "rtcompile", in_place)
        if given.parts:
            parts(task, in_place)
            return
        for number in range(ROUNDS):
            for name, (how, cache) in contenders.items():
                forget_builds(in_place)
                result = run(task, how, cache or here / f"{name} {number}")
                if cache is None:
                    shutil.rmtree(here / f"{name} {number}", ignore_errors=True)
                times.setdefault(name, []).append(result["seconds"])
                each.setdefault(name, []).append(result["each"])
                digests[name] = result["digests"]  # type: ignore[assignment]
        codes = list(digests.values())
        differing = [i for i, same in enumerate(zip(*codes, strict=True)) if len(set(same)) > 1]
        seconds = {name: statistics.median(of) for name, of in times.items()}
        base = next(iter(seconds.values()))
        results = {
            name: {
                "seconds": round(of, 2),
                "ratio": round(of / base, 3),
                "of runs": [round(one, 2) for one in times[name]],
            }
            for name, of in seconds.items()
        }
        if given.each:
            for i, build in enumerate(builds):
                row = [
                    f"{1e3 * statistics.median(run[i] for run in runs):7.0f}"
                    for runs in each.values()
                    if runs[0]
                ]
                print(*row, build["name"], file=sys.stderr)
        kinds = {"kernels": len(builds), "code differs": [builds[i]["name"] for i in differing]}
        _machine.save("everywhere_cold", {**kinds, **results})


if __name__ == "__main__":
    main()
