"""Checks rtcompile on aarch64 in the current environment, and prints a line of JSON for each check.

`aarch64` runs it as a file and not as a module, so it tests the installed rtcompile. Each program of a
check is a separate process that must leave nothing behind. The argument is a folder that may contain a
store filled by an x86-64 machine.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

HERE = Path(__file__).parent

# Prints where the code was found, its digest, and whether a precompiled header was used; or the error.
BUILD = """
import hashlib, json, os, sys, time, rtcompile
from rtcompile.compilers import nvrtc
source, arguments = json.loads(sys.argv[1]), json.loads(sys.argv[2])
notes, compile = [], nvrtc.compile
def noted(*given, **more):
    outcome = compile(*given, **more)
    notes.extend(getattr(outcome, "notes", ()))
    return outcome
nvrtc.compile = noted
try:
    built = rtcompile.compile(source, **{"arch": "sm_90", **arguments})
    print(json.dumps([built.build.hit, hashlib.sha256(built.code).hexdigest(), notes]))
except rtcompile.RtcompileError as error:
    print(json.dumps([type(error).__name__, str(error), []]))
if "RTCOMPILE_REMOTE" in os.environ:
    time.sleep(10)  # a program waits for its stores for two seconds at its end, too few in an emulation
"""
KERNEL = "__global__ void k(int* x) { *x = VALUE; }\n"
LONG = "#include <cub/block/block_radix_sort.cuh>\n__global__ void k(int* x) { *x = 1; }\n"
# Unsigned on aarch64, whose NVRTC names the same build as x86-64's.
CHAR = "__global__ void k(int* x) { *x = static_cast<char>(-1) < 0; }\n"

STATE = """
import os
from rtcompile import toolkit
from rtcompile.workers import libraries as nvrtc
library = toolkit.current().require_nvrtc()
nvrtc.load(os.pathsep.join((*library.preload, library.path)))
nvrtc._pin_heap()
print(nvrtc.probes_see_all(), nvrtc._heap_is_pinned)
"""


class Bench:
    """A folder for a check: its cache, its headers, and the programs that it starts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.headers = folder / "headers"
        self.headers.mkdir()
        cache = str(folder / "cache")
        self.environ = {
            **os.environ,
            "RTCOMPILE_CACHE_DIR": cache,
            "RTCOMPILE_REMOTE_UNSIGNED": "1",
        }

    def start(self, program: str, *words: str, **environ: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", program, *words]
        pipe = subprocess.PIPE
        environ = {**self.environ, **environ}
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environ)

    def run(self, program: str, *words: str, **environ: str) -> str:
        return finished(self.start(program, *words, **environ))

    def words(self, source: str, **arguments: object) -> tuple[str, str]:
        return json.dumps(source), json.dumps({"options": [f"-I{self.headers}"], **arguments})

    def build(
        self, source: str, *, environ: Mapping[str, str] = MappingProxyType({}), **arguments: object
    ) -> list:
        return json.loads(self.run(BUILD, *self.words(source, **arguments), **environ))


def finished(process: subprocess.Popen[str]) -> str:
    output, problem = process.communicate()
    assert process.returncode == 0, problem
    return output.strip()


# --- the checks: each returns what it saw, and raises AssertionError if that is wrong ---------------


def doctor(bench: Bench) -> object:
    command = [sys.executable, "-m", "rtcompile", "doctor", "--json"]
    environ = {
        **bench.environ,
        "RTCOMPILE_TIMEOUT": "1800",
    }  # a probe may take longer than the usual 120 s
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return "exit status 0, with a compile of each kind"


def ten_builds(bench: Bench) -> object:
    sys.path.insert(0, str(HERE))
    from ten_builds import BUILDS

    command = [sys.executable, str(HERE / "ten_builds.py"), "0", *BUILDS]
    done = subprocess.run(command, env=bench.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])["builds"]
    seen = {name: each.get("backend") or each["error"] for name, each in found.items()}
    built = [name for name, output in seen.items() if output in ("nvrtc", "nvcc")]
    # No wheel of CUDA 12 has nvcc, which two of them need.
    assert len(built) == (10 if "13" in sys.prefix else 8), seen
    return seen


def architectures(bench: Bench) -> object:
    thor = "sm_110" if "13" in sys.prefix else "sm_101"
    seen = []
    for arch in ("sm_87", "sm_90", "sm_90a", "sm_100a", thor, "sm_121", "sm_121a"):
        hit, output, _ = bench.build(KERNEL.replace("VALUE", "1"), arch=arch)
        assert hit is None, output
        seen.append(arch)
    return seen


def slots_and_heap(bench: Bench) -> object:
    output = bench.run(STATE)
    assert output == "True True", output
    return "NVRTC is observed through its PLT slots, and its heap for PCH lies at the fixed address"


def cache(bench: Bench) -> object:
    header = bench.headers / "v.h"
    source = '#include "v.h"\n' + KERNEL
    hits, codes = [], []
    for text in ("1", "1", "2", "1"):
        if not header.is_file() or header.read_text() != f"#define VALUE {text}\n":
            header.write_text(f"#define VALUE {text}\n")
        hit, code, _ = bench.build(source)
        hits.append(hit)
        codes.append(code)
    assert hits == [None, "disk", None, "disk"], hits
    assert codes[0] == codes[1] == codes[3] != codes[2]
    return "compiled; hit in another process; compiled when a header was edited; hit when it was as before"


def absent_header(bench: Bench) -> object:
    source = (
        '#if __has_include("opt.h")\n#define VALUE 1\n#else\n#define VALUE 2\n#endif\n' + KERNEL
    )
    first, without, _ = bench.build(source)
    again, _, _ = bench.build(source)
    (bench.headers / "opt.h").touch()
    new, there, _ = bench.build(source)
    assert [first, again, new] == [None, "disk", None]
    assert there != without
    return "a header that was looked for, and comes later, makes a build"


def two_processes(bench: Bench) -> object:
    words = bench.words(KERNEL.replace("VALUE", "3"))
    both = [bench.start(BUILD, *words) for _ in range(2)]
    hits = [json.loads(finished(process))[0] for process in both]
    assert sorted(hits, key=str) == [None, "disk"], hits
    return "of two processes that want one kernel one compiles, the other waits for it"


def shared_store(bench: Bench) -> object:
    store = f"file://{bench.folder / 'store'}"
    os.mkdir(bench.folder / "store")
    source = KERNEL.replace("VALUE", "4")
    hits = []
    for node in ("one", "two"):
        environ = {"RTCOMPILE_REMOTE": store, "RTCOMPILE_CACHE_DIR": str(bench.folder / node)}
        hits.append(bench.build(source, environ=environ)[0])
    assert hits == [None, "remote"], hits
    return "what one node compiled another one fetches from a folder"


def store_of_x86(bench: Bench) -> object:
    store = Path(sys.argv[1])
    if not any(store.glob("**/*")):
        return "not run: no x86-64 of the same NVRTC filled the store"
    hit, code, _ = bench.build(CHAR, environ={"RTCOMPILE_REMOTE": f"file://{store}"}, options=[])
    theirs = (store.parent / "digest").read_text()
    assert hit is None
    assert code != theirs
    return "code of x86-64's NVRTC of the same build, in which char is signed, is not used"


def batch(bench: Bench) -> object:
    program = (
        "import rtcompile, json\n"
        "from rtcompile import CompileRequest\n"
        f"texts = [{KERNEL!r}.replace('VALUE', str(10 + n)) for n in range(6)]\n"
        "many = rtcompile.compile_many([CompileRequest(t, arch='sm_90') for t in texts])\n"
        "one = [rtcompile.compile(t, arch='sm_90', recompile=True) for t in texts]\n"
        "assert [m.code for m in many] == [o.code for o in one]\n"
        "print(len({m.code for m in many}))"
    )
    assert bench.run(program, RTCOMPILE_JOBS="2") == "6"
    return "six kernels in two workers: the same code as in single builds"


def precompiled(bench: Bench) -> object:
    notes: list[str] = []
    for value in range(4):
        source = f"#include <cuda_fp16.h>\n{KERNEL.replace('VALUE', str(value))}"
        hit, output, notes = bench.build(source, options=[])
        assert hit is None, output
        if value == 1:
            wait_for(lambda: [*bench.folder.glob("cache/pch/*.pch")], 900)
            wait_for(lambda: len(processes()) == 1, 300)
    _, plain, none = bench.build(source, options=[], pch=False, recompile=True)
    assert any("precompiled" in note for note in notes), notes
    assert (plain, none) == (output, []), "the same code as without"
    return "made beside the code of the second build, used by another process, same code"


def killed_worker(bench: Bench) -> object:
    process = bench.start(BUILD, *bench.words(LONG))
    while process.poll() is None:  # a worker that had done another job before is tried once more
        time.sleep(0.2)
        # Not the zygote, a child of the caller, which reports the death.
        for pid in [pid for pid in processes() if pid != process.pid]:
            parent, seconds = status(pid)
            if parent not in (0, os.getpid(), process.pid) and seconds > 3:
                os.kill(pid, signal.SIGKILL)
    kind, output, _ = json.loads(finished(process))
    assert kind == "CompilerCrashed", output
    assert "signal 9" in output
    assert bench.build(KERNEL.replace("VALUE", "5"))[0] is None
    return output.splitlines()[0]


def time_limit(bench: Bench) -> object:
    assert bench.build(KERNEL.replace("VALUE", "6"))[0] is None
    begin = time.monotonic()
    kind, output, _ = bench.build(LONG, timeout=15)
    assert kind == "CompileTimeout", output
    assert "killed" in output
    return f"{output.splitlines()[0]} ({time.monotonic() - begin:.0f} s, the process included)"


# --- processes: this runs in a namespace of process ids of its own ----------------------------------


def processes() -> list[int]:
    """Return the processes of aarch64 that live, this one included."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_ours(pid)]


def is_ours(pid: int) -> bool:
    try:
        return b"python" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def status(pid: int) -> tuple[int, float]:
    """Return a process's parent, and the seconds of processor time that it took; 0 once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, 0.0
    return int(fields[1]), (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(what: Callable[[], object], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"nothing after {seconds:g} s"
        time.sleep(0.2)


CHECKS = {
    "doctor": doctor,
    "ten builds": ten_builds,
    "architectures": architectures,
    "slots and heap": slots_and_heap,
    "cache": cache,
    "absent header": absent_header,
    "two processes": two_processes,
    "shared store": shared_store,
    "store of x86-64": store_of_x86,
    "batch": batch,
    "precompiled header": precompiled,
    "killed worker": killed_worker,
    "time limit": time_limit,
}


def outcomes(names: list[str]) -> Iterator[tuple[str, dict[str, object]]]:
    for name in names or CHECKS:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                seen, good = CHECKS[name](Bench(Path(folder))), True
                wait_for(lambda: len(processes()) == 1, 30)
            except Exception as error:  # every check is to be tried
                seen, good = f"{type(error).__name__}: {error}", False
        yield name, {"good": good, "seen": seen, "seconds": round(time.monotonic() - begin)}


def main() -> None:
    from rtcompile.toolkit import current

    about = {"machine": platform.machine(), "python": platform.python_version()}
    print(json.dumps({**about, "versions": dict(current().versions)}), flush=True)
    for name, outcome in outcomes(sys.argv[2:]):
        print(json.dumps({name: outcome}), flush=True)


if __name__ == "__main__":
    main()
