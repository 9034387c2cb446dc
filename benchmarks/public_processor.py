"""Measures the processor time of cold builds of public projects' sources, by rtcompile and by NVRTC in process.

``python -m benchmarks.public_processor FOLDER [--save]``: FOLDER is as for `public_again`. Of each project
those sources count that NVRTC compiles alone, with the toolkit's headers and the project's own; of more than
MOST, that many chosen at random.

A project is a program: one process compiles its sources one after the other, and nothing twice. A second
process, and a third, do so after an edit of each source. All seconds of a processor count that a program has
caused since it imported CuPy: those of its workers too.
The contenders take turns, program by program; ROUNDS rounds, each on caches that know the toolchain and nothing else.
"""

from __future__ import annotations

import collections
import ctypes
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _machine
from benchmarks.public_again import requests
from rtcompile import toolkit

ROUNDS = int(os.environ.get("ROUNDS", "5"))
MOST = int(os.environ.get("MOST", "12"))
EDITS = int(os.environ.get("EDITS", "2"))
CONTENDERS = ("rtcompile", "NVRTC")

CHILD = r"""
import json, os, signal, sys, time
import cupy
from cupy.cuda.compiler import _NVRTCProgram
who, edit, folders, requests = json.load(sys.stdin)

def nvrtc(source, options):
    given = ("-arch=sm_90", *options, *("-I" + folder for folder in folders))
    return _NVRTCProgram(source, "k.cu", method="cubin").compile(given)[0]

def compiles(source, options):
    pid = os.fork()
    if not pid:
        signal.alarm(60)
        try:
            os._exit(not nvrtc(source, options))
        except BaseException:
            os._exit(1)
    return not os.waitpid(pid, 0)[1]

begin = time.process_time()
if who == "rtcompile":
    import rtcompile
taken = []
for path, options in requests:
    with open(path, errors="replace") as file:
        source = file.read() + f"\n__device__ int edited = {edit};\n"
    if who == "which":
        taken.append(compiles(source, options))
    elif who == "NVRTC":
        nvrtc(source, options)
    else:
        build = rtcompile.compile(source, arch="sm_90", options=options).build
        taken.append(bool(build.headers))
print(json.dumps([begin, taken]))
"""


def program(who: str, edit: int, given: list[Any], cache: str) -> tuple[float, list[bool]]:
    """Run one program; return the processor seconds of all its processes, and its result for each source."""
    environ = {
        **os.environ,
        "RTCOMPILE_CACHE_DIR": cache,
        "RTCOMPILE_CACHE_SIZE": "100G",
        "RTCOMPILE_FALLBACK": "never",
    }
    folders = [directory.path for directory in toolkit.current().search]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin:
        child.stdin.write(json.dumps([who, edit, folders, given]).encode())
    begin, results = json.loads(child.stdout.read())
    child.stdout.close()
    spent = -begin
    while True:
        try:
            pid, status, usage = os.wait4(-1, 0)
        except ChildProcessError:
            break
        assert pid != child.pid or not status
        spent += usage.ru_utime + usage.ru_stime
    child.returncode = 0
    return spent, results


def measure(folder: Path) -> dict[str, Any]:
    # What a program leaves running becomes this process's child, which can wait for it.
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    by_project: dict[str, list[Any]] = collections.defaultdict(list)
    for path, options in requests(folder):
        by_project[Path(path).relative_to(folder.absolute()).parts[0]].append((path, options))
    chosen: dict[str, list[Any]] = {}
    for project, given in by_project.items():
        _, fit = program("which", 0, given, "")
        given = [each for each, is_fit in zip(given, fit, strict=True) if is_fit]
        some = random.Random(project).sample(given, min(MOST, len(given)))
        sys.stderr.write(f"{project}: {len(some)} of {len(by_project[project])} sources\n")
        if some:
            chosen[project] = some
    rounds = []
    with_headers: dict[str, int] = {}
    known_toolchain = tempfile.TemporaryDirectory()
    first = Path(known_toolchain.name, "first.cu")
    first.write_text("__global__ void first() {}")
    program("rtcompile", 0, [(str(first), [])], known_toolchain.name)
    for number in range(ROUNDS):
        spent: dict[tuple[str, int, str], float] = {}
        for project, given in chosen.items():
            with tempfile.TemporaryDirectory() as cache:
                shutil.copytree(f"{known_toolchain.name}/toolchains", f"{cache}/toolchains")
                for edit in range(1 + EDITS):
                    for who in CONTENDERS[:: 1 if (number + edit) % 2 else -1]:
                        spent[project, edit, who], results = program(who, edit, given, cache)
                        if who == "rtcompile":
                            with_headers[project] = sum(results)
        rounds.append(spent)
        sums = [sum(v for k, v in spent.items() if k[2] == who) for who in CONTENDERS]
        sys.stderr.write(f"round {number + 1}: {sums[0]:.1f} s, NVRTC {sums[1]:.1f} s\n")

    def ratios(edits: range, projects: list[str]) -> dict[str, Any]:
        sums = [
            [sum(spent[p, e, who] for p in projects for e in edits) for who in CONTENDERS]
            for spent in rounds
        ]
        each = [ours / theirs for ours, theirs in sums]
        return {
            **{
                f"{who}, seconds": round(statistics.median(s[i] for s in sums), 2)
                for i, who in enumerate(CONTENDERS)
            },
            "ratio, by round": [round(ratio, 3) for ratio in each],
            "ratio": round(statistics.median(each), 3),
        }

    known = folder / "projects.json"
    commits = json.loads(known.read_text()) if known.exists() else {}
    names = list(chosen)
    return {
        "rounds": ROUNDS,
        "all, nothing built twice": ratios(range(1), names),
        **{
            f"all, after edit {edit} of every source, that build": ratios(
                range(edit, edit + 1), names
            )
            for edit in range(1, 1 + EDITS)
        },
        "all, with the edits": ratios(range(1 + EDITS), names),
        "projects, nothing built twice": {
            f"{name.replace('__', '/')} {commits.get(name.replace('__', '/'), '')[:12]}": {
                "sources": len(chosen[name]),
                "of these with headers": with_headers[name],
                **ratios(range(1), [name]),
                "ratio with the edits": ratios(range(1 + EDITS), [name])["ratio"],
            }
            for name in names
        },
    }


if __name__ == "__main__":
    given = next(word for word in sys.argv[1:] if not word.startswith("-"))
    _machine.save("public_processor", measure(Path(given)))
