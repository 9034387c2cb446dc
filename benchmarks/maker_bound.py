"""What precompiled headers may cost on one core: a build at most a tenth, whatever befalls the maker.

A script that includes headers is edited and run again without a pause, a fresh process each time,
all on one core: the maker of the header has no other to be on. The last runs change nothing, so
they find their code. Blocks of runs with precompiled headers and without (``RTCOMPILE_PCH=0``) take
turns, each block on an empty cache, because a maker would be beside the runs of the other contender
too. A run's ratio is the median over the rounds of what it took with, by what it took without;
those of the runs that find their code are taken together, as they are short. The maker is left
alone, or killed as soon as it is seen, or a moment later, or has too little memory, or may write no
file of more than 4 MB, or has its folder become read-only.

Each block ends with a look for what is left: processes, locks, unfinished files, folders of
workers (in a folder that became read-only meanwhile, the maker's lock, which nobody holds, cannot be
removed); and every run's code is compared with that of the run without. ``--save`` writes
benchmarks/results/maker_bound.json. ROUNDS and RUNS set the numbers; words after the name of the
script choose what is measured, ``"cuda/std" "left alone"``.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks import _machine

ROUNDS = int(os.environ.get("ROUNDS", "5"))
RUNS = int(os.environ.get("RUNS", "6"))
WARM = 6

SOURCES = {
    "cuda/std": "#include <cuda/std/complex>\n#include <cuda/std/tuple>\n",
    "CuTe": "#include <cute/tensor.hpp>\n",
}
KERNEL = 'extern "C" __global__ void k(float* x) {{ x[threadIdx.x] += {edit}.0f; }}'

# It says whether the code was found, and its digest.
CHILD = r"""
import hashlib, json, os, sys, time
source, core, memory = json.load(sys.stdin)
os.sched_setaffinity(0, {core})
import rtcompile
if memory is not None:
    from rtcompile.compilers import pch_maker
    pch_maker._BYTES = memory
code = rtcompile.compile(source, arch="sm_90", options=["-DNDEBUG"])
print(code.build.hit or "built", hashlib.sha256(code.code).hexdigest())
"""

MAKER = "rtcompile.compilers.pch_maker:main"


def processes(word: str) -> list[int]:
    """The processes that have a word in their command line, this one left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                if word.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # it ended
    return found


class Block:
    """Runs on an empty cache; what is done to the maker meanwhile; what is left in the end."""

    def __init__(self, folder: Path, *, pch: bool) -> None:
        self.cache = folder / "cache"
        self.scratch = folder / "scratch"
        self.scratch.mkdir(parents=True)
        self.environ = {
            **os.environ,
            "RTCOMPILE_CACHE_DIR": str(self.cache),
            "RTCOMPILE_PCH": str(int(pch)),
            "TMPDIR": str(self.scratch),
        }
        self.memory: int | None = None
        self.file_bytes: int | None = None
        self.after_first: Callable[[], None] | None = None
        self.kill_after: float | None = None

    def runs(self, prefix: str) -> list[tuple[float, str]]:
        """Return for each run its milliseconds, and what it found or built."""
        ended = threading.Event()
        killer = threading.Thread(target=self._kill_makers, args=(ended,))
        killer.start()
        try:
            found = []
            for number in range(RUNS + WARM):
                source = prefix + KERNEL.format(edit=min(number, RUNS - 1))
                found.append(self._run(source))
                if number == 1 and self.after_first is not None:  # a maker is under way
                    self.after_first()
            return found
        finally:
            ended.set()
            killer.join()

    def _run(self, source: str) -> tuple[float, str]:
        def limit() -> None:
            if self.file_bytes is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (self.file_bytes, self.file_bytes))

        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", CHILD],
            input=json.dumps([source, CORE, self.memory]),
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=limit,
        )
        wall = (time.perf_counter() - begin) * 1e3
        assert done.returncode == 0, done.stderr
        return wall, done.stdout.strip()

    def _kill_makers(self, ended: threading.Event) -> None:
        while not ended.wait(0.02):
            if self.kill_after is not None and (makers := self._makers()):
                ended.wait(self.kill_after)
                for pid in makers:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        continue

    def _makers(self) -> list[int]:
        # Only those of this benchmark: their environment names this block's folder for files.
        ours = str(self.scratch).encode()
        found = []
        for pid in processes(MAKER):
            try:
                if ours in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
            except OSError:
                continue
        return found

    def left(self) -> list[str]:
        """Wait for the maker's end; return what should not be there."""
        until = time.monotonic() + 120
        while self._makers() and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.3)  # its worker clears up
        pch = self.cache / "pch"
        names = [path.name for path in pch.iterdir()] if pch.exists() else []
        unfinished = [n for n in names if not n.endswith((".pch", ".record"))]
        alone = [
            n for n in names if n.endswith(".pch") and n.replace(".pch", ".record") not in names
        ]
        folders = [str(path.name) for path in self.scratch.rglob("*")]
        return [*(f"process {pid}" for pid in self._makers()), *unfinished, *alone, *folders]


def leave_alone(_: Block) -> None:
    pass


def kill_at_once(block: Block) -> None:
    block.kill_after = 0.0


def kill_later(block: Block) -> None:
    block.kill_after = 0.8


def little_memory(block: Block) -> None:
    block.memory = 64 << 20


def small_files(block: Block) -> None:
    block.file_bytes = 4 << 20


def read_only(block: Block) -> None:
    block.after_first = lambda: make_read_only(block.cache)


def make_read_only(folder: Path) -> None:
    """Make a folder read-only: for root by a mount, which only its owner may make."""
    if os.geteuid() != 0:
        for path in [folder, *filter(Path.is_dir, folder.rglob("*"))]:
            path.chmod(0o500)
        return
    for words in (["--bind", str(folder), str(folder)], ["-o", "remount,ro,bind", str(folder)]):
        subprocess.run(["mount", *words], check=True, capture_output=True)


def make_writable(folder: Path) -> None:
    if os.geteuid() != 0:
        for path in [folder, *filter(Path.is_dir, folder.rglob("*"))]:
            path.chmod(0o700)
    subprocess.run(["umount", str(folder)], check=False, capture_output=True)


FATES = {
    "left alone": leave_alone,
    "killed as soon as it is seen": kill_at_once,
    "killed after 0.8 s": kill_later,
    "too little memory": little_memory,
    "no file over 4 MB": small_files,
    "a folder that becomes read-only": read_only,
}

CORE = min(os.sched_getaffinity(0))


def block(fate: Callable[[Block], None], prefix: str, *, pch: bool) -> tuple[list, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        made = Block(Path(folder), pch=pch)
        warm = made.environ | {"RTCOMPILE_PCH": "0"}
        # What any program has: the toolchain, searched for once.
        subprocess.run(
            [sys.executable, "-c", CHILD],
            input=json.dumps([KERNEL.format(edit=99), CORE, None]),
            env=warm,
            text=True,
            check=True,
            capture_output=True,
        )
        fate(made)
        try:
            return made.runs(prefix), made.left()
        finally:
            make_writable(made.cache)


def measure(fate: Callable[[Block], None], prefix: str) -> dict[str, object]:
    ratios: list[list[float]] = [[] for _ in range(RUNS + WARM)]
    totals: list[float] = []
    left: list[str] = []
    builds: list[float] = []
    for number in range(ROUNDS):
        walls = {}
        codes = {}
        for pch in (True, False) if number % 2 else (False, True):
            found, remains = block(fate, prefix, pch=pch)
            walls[pch] = [wall for wall, _ in found]
            codes[pch] = [said.split()[1] for _, said in found]
            left += remains
        assert codes[True] == codes[False], "another code with precompiled headers"
        for at, (with_, without) in enumerate(zip(walls[True], walls[False], strict=True)):
            ratios[at].append(with_ / without)
        totals.append(sum(walls[True]) / sum(walls[False]))
        builds += walls[False][:RUNS]
    medians = [round(statistics.median(each), 3) for each in ratios[:RUNS]]
    hits = statistics.median(ratio for each in ratios[RUNS:] for ratio in each)
    return {
        "ms of a run that builds, without": round(statistics.median(builds), 1),
        "ratio of each run that builds": medians,
        "worst of them": max(medians),
        "ratio of the runs that find their code": round(hits, 3),
        "ratio of the whole block": round(statistics.median(totals), 3),
        "left behind": sorted(set(left)),
    }


def main() -> None:
    wanted = [word for word in sys.argv[1:] if not word.startswith("--")]
    results: dict[str, object] = {}
    for kind, prefix in SOURCES.items():
        for name, fate in FATES.items():
            title = f"{kind}, maker {name}"
            if all(word in title for word in wanted):
                try:
                    results[title] = measure(fate, prefix)
                except subprocess.CalledProcessError as error:
                    results[title] = f"not measured: {error}"  # no mounts here
                print(title, json.dumps(results[title]), file=sys.stderr, flush=True)
    _machine.save("maker_bound", results)


if __name__ == "__main__":
    main()
