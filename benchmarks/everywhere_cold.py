"""The kernels of a record, compiled one after the other as CuPy asks for them. Needs no GPU.

``python -m benchmarks.everywhere_cold kernels.json [--save] [--each]``: a record of
``rtcompile run --record``. NVRTC in process, as CuPy has it; rtcompile with an empty cache; with only
the precompiled headers in place; and ``rtcompile warm``, many at once. Every contender is a fresh
process, they take turns, and the figures are those of the whole process, less the start of an
interpreter. All code must be the same, byte by byte. ROUNDS sets the number of rounds.
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
import time
from pathlib import Path

from benchmarks import _machine

ROUNDS = int(os.environ.get("ROUNDS", "3"))

CHILD = r"""
import hashlib, json, sys, time
begin = time.perf_counter()
with open(sys.argv[1]) as file:
    task = json.load(file)
each, digests = [], []
if sys.argv[2] == "NVRTC":
    from rtcompile.workers import nvrtc
    nvrtc.load(task["library"])
    for options in {tuple(build["options"]) for build in task["builds"]}:
        # CuPy asks the compiler for its build, once for each set of options.
        nvrtc.Program(b"", b"default_program").compile([o.encode() for o in options])
    for build in task["builds"]:
        started = time.perf_counter()
        options = [option.encode() for option in [*build["options"], "-arch=" + build["arch"]]]
        job = {"source": build["source"].encode(), "name": b"k.cu", "expressions": [], "target": "cubin"}
        reply = nvrtc._compile(job, options)
        assert not reply["error"], reply["log"]
        digests.append(hashlib.sha256(reply["code"]).hexdigest())
        each.append(time.perf_counter() - started)
else:
    import rtcompile
    if sys.argv[2] == "many":
        requests = [
            rtcompile.CompileRequest(
                b["source"], options=b["options"], arch=b["arch"], name=b["name"]
            )
            for b in task["builds"]
        ]
        codes = rtcompile.compile_many(requests, progress=False)
        digests = [hashlib.sha256(code.code).hexdigest() for code in codes]
    else:
        for b in task["builds"]:
            started = time.perf_counter()
            code = rtcompile.compile(b["source"], options=b["options"], arch=b["arch"], name=b["name"])
            digests.append(hashlib.sha256(code.code).hexdigest())
            each.append(time.perf_counter() - started)
print(json.dumps({"seconds": time.perf_counter() - begin, "each": each, "digests": digests}))
"""


def run(task: Path, who: str, cache: Path) -> dict[str, list[float]]:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(task), who],
        env={**os.environ, "RTCOMPILE_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, list[float]] = json.loads(done.stdout)
    return result


def forget_builds(cache: Path) -> None:
    """Leave only the precompiled headers in a cache, where they are: a copy would be another file."""
    for part in ("answers", "objects", "manifests", "portable"):
        shutil.rmtree(cache / part, ignore_errors=True)


def await_makers(cache: Path) -> None:
    """Wait until no process makes a header any more."""
    while list((cache / "pch").glob("*.lock")):
        time.sleep(0.1)


def main() -> None:
    from rtcompile import toolkit
    from rtcompile.everywhere import recording, warming
    from rtcompile.settings import Settings

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("record")
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--each", action="store_true", help="print the milliseconds of each kernel")
    parser.add_argument("--only", nargs="*", help="contenders to run, by their first letters")
    given = parser.parse_args()
    record = recording.read(given.record)
    library = toolkit.current(Settings.from_environ()).require_nvrtc()
    with tempfile.TemporaryDirectory() as folder, warming.requests(record) as requests:
        here = Path(folder)
        task = here / "task.json"
        builds = [
            {
                "source": request.source,
                "options": list(request.options),
                "arch": str(request.arch),
                "name": request.name,
            }
            for request in requests
        ]
        paths = os.pathsep.join((*library.preload, library.path))
        task.write_text(json.dumps({"library": paths, "builds": builds}))
        in_place = here / "in place"
        contenders = {
            "NVRTC in process": ("NVRTC", None),
            "rtcompile, cold": ("one by one", None),
            "rtcompile, headers in place": ("one by one", in_place),
            "rtcompile, many at once": ("many", None),
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
        run(task, "one by one", in_place)
        for _ in range(3):  # a maker begins when the last build that wanted it is done
            await_makers(in_place)
            forget_builds(in_place)
            run(task, "one by one", in_place)
        for number in range(ROUNDS):
            for name, (how, cache) in contenders.items():
                forget_builds(in_place)
                result = run(task, how, cache or here / f"{name} {number}")
                if cache is None:
                    await_makers(here / f"{name} {number}")
                    shutil.rmtree(here / f"{name} {number}", ignore_errors=True)
                times.setdefault(name, []).append(result["seconds"])
                each.setdefault(name, []).append(result["each"])
                digests[name] = result["digests"]  # type: ignore[assignment]
        codes = [digests[name] for name in contenders if not name.startswith("NVRTC")]
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
        kinds = {"kernels": len(builds), "differing": [builds[i]["name"] for i in differing]}
        _machine.save("everywhere_cold", {**kinds, **results})
        assert not differing


if __name__ == "__main__":
    main()
