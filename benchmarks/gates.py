"""Holds the promises of speed against a base commit: `make gates`, ten minutes on two cores, no GPU.

``python -m benchmarks.gates [--only REGEX] [--base FOLDER] [--new FOLDER] [--out FILE]``: each row of
benchmarks/gate_rows.py is measured with this checkout and with the base in turns. The base is the commit in
benchmarks/gates_base.txt, checked out into .gates/, unless --base names another checkout.

A figure is the mean ratio of new to base over the pairs (of the logarithms, without the tenth of the pairs at either
end). Its noise comes from the same pairs: a machine of the same speed would have a ratio outside of it once in a
thousand. A row that seems slower is measured once more, with twice the pairs. It fails if its ratio exceeds 1 by more
than its noise, and by more than `LEAST`, which is how far two checkouts of one commit differ.

A count has no noise: functions of rtcompile that ran in the calling process and their calls, modules imported, and
from `strace` (without it, a line says so) system calls, processes started, bytes read and written, those of the
compilers included. Each is the least of a row's counted runs, and fails if it grows by a tenth.

The exit status is 1 if a row failed; the last lines name each.
"""

from __future__ import annotations

import argparse
import compileall
import json
import lzma
import math
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _machine, gate_rows

ROOT = Path(__file__).parents[1]
BASE = Path(__file__).with_name("gates_base.txt")
LEAST = 0.03
GROWTH = 0.1
FAILING_SOURCES = 12
TIMEOUT = 300.0  # seconds of one run

# Student's t that 1 of 1000 exceeds, by the degrees of freedom from 1 on.
_T = (318.3, 22.3, 10.2, 7.17, 5.89, 5.21, 4.79, 4.50, 4.30, 4.14, 4.02, 3.93, 3.85, 3.79, 3.73)

# System calls whose number depends on the machine's speed or on the allocator, not on the code.
_NOT_COUNTED = re.compile(
    r"futex|e?p?poll|select|wait|sched_|nanosleep|clock_|gettime|rt_sig|restart_|brk|mmap|munmap|mprotect|madvise"
    r"|mremap|set_robust_list|rseq|exit|getrusage|times"
)
_CALL = re.compile(r"(\d+) +(?:<\.\.\. )?(\w+)(?: resumed>|\()(.*)")


class Ratio(NamedTuple):
    """New to base, with the noise of its pairs; both are fractions of the base."""

    value: float
    noise: float
    pairs: int
    base: float
    new: float

    @property
    def is_slower(self) -> bool:
        return self.value > 1 + max(self.noise, LEAST)


def ratio(pairs: list[tuple[float, float]]) -> Ratio:
    """Return the ratio of pairs of seconds (base, new): a trimmed mean, and its winsorized error."""
    logs = sorted(math.log(new / base) for base, new in pairs)
    cut = len(logs) // 10
    kept = logs[cut : len(logs) - cut]
    drawn_in = [min(max(each, kept[0]), kept[-1]) for each in logs]
    error = statistics.stdev(drawn_in) * math.sqrt(len(logs)) / len(kept)
    t = _T[min(len(kept) - 1, len(_T)) - 1]
    base, new = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Ratio(math.exp(statistics.mean(kept)), math.expm1(t * error), len(pairs), base, new)


# --- processes ------------------------------------------------------------------------------------


class Host:
    """A process of gate_rows.py, which forks a process for each task."""

    def __init__(self, folder: Path, cupy: bool, trace: Path | None = None) -> None:
        command = [sys.executable, gate_rows.__file__, str(ROOT / "tests"), *["cupy"] * cupy]
        if trace:
            command = [
                "strace",
                "-f",
                "-qq",
                "-s",
                "64",
                "-e",
                "signal=none",
                "-o",
                str(trace),
                *command,
            ]
        self._errors = folder / f"errors-{time.monotonic_ns()}"
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=folder,
            )

    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        """Run a task; return its figures and counts."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(repr(task) + "\n")
        self._process.stdin.flush()
        if self._process.stdout.readline().strip() != "0":
            raise RuntimeError(f"{task['job']} of {task['checkout']}:\n{self._errors.read_text()}")
        found: dict[str, Any] = eval(Path(task["out"]).read_text())
        return found

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(TIMEOUT)


class Side(NamedTuple):
    """One of the two checkouts, and the folder of its caches."""

    checkout: Path
    folder: Path


def environment(folder: Path, cache: Path, store: Path | None) -> dict[str, str]:
    found = {
        "RTCOMPILE_CACHE_DIR": str(cache / "rtcompile"),
        "CUPY_CACHE_DIR": str(cache / "cupy"),
        "CUDA_CACHE_PATH": str(cache / "driver"),
        "RTCOMPILE_PROGRESS": "0",
    }
    if store:
        found["RTCOMPILE_REMOTE"] = f"file://{store}"
        found["RTCOMPILE_REMOTE_UNSIGNED"] = "1"
    return found


class Measured:
    """The runs of one row, prepared for both checkouts."""

    def __init__(self, row: gate_rows.Row, host: Host, sides: list[Side], name: str) -> None:
        self._row = row
        self._host = host
        self._number = 0
        self._sides = [side._replace(folder=side.folder / str(len(name)) / name) for side in sides]
        for side in self._sides:
            (side.folder / "store").mkdir(parents=True)
            cache = side.folder / "kept"
            for number, (job, given) in enumerate(row.prepare):
                if row.store:  # the last job's cache is kept: that of a node that has built nothing
                    shutil.rmtree(cache, ignore_errors=True)
                self._one(side, cache, -1 - number, job, given, host)

    def pair(self) -> list[dict[str, float]]:
        """Return the figures of the base and of the new checkout, measured next to each other."""
        self._number += 1
        found = {}
        for side in self._sides if self._number % 2 else self._sides[::-1]:
            with self._cache(side) as cache:
                found[side] = self._run(side, cache, self._host)["figures"]
        return [found[side] for side in self._sides]

    def counts(self, folder: Path) -> list[dict[str, int]]:
        """Return the counts of both checkouts."""
        every: list[list[dict[str, int]]] = [[], []]
        for _ in range(self._row.counted):
            self._number += 1
            for side, of in zip(self._sides, every, strict=True):
                trace = folder / "trace" if shutil.which("strace") else None
                host = Host(folder, self._row.cupy, trace)
                with self._cache(side) as cache:
                    found = self._run(side, cache, host, count=True)["counts"]
                host.close()
                of.append({**found, **(traced(trace) if trace else {})})
        return [
            {name: min(one[name] for one in of) for name in of[0]} if of else {} for of in every
        ]

    @contextmanager
    def _cache(self, side: Side) -> Iterator[Path]:
        kept, copied = side.folder / "kept", side.folder / "copied"
        if not self._row.fresh:
            yield kept
            return
        shutil.copytree(kept, copied, symlinks=True)
        try:
            yield copied
        finally:
            shutil.rmtree(copied)

    def _run(self, side: Side, cache: Path, host: Host, count: bool = False) -> dict[str, Any]:
        return self._one(side, cache, self._number, self._row.job, self._row.given, host, count)

    def _one(
        self,
        side: Side,
        cache: Path,
        number: int,
        job: Any,
        given: Any,
        host: Host,
        count: bool = False,
    ) -> dict[str, Any]:
        store = side.folder / "store" if self._row.store else None
        return host.run(
            {
                "checkout": str(side.checkout),
                "environ": environment(side.folder, cache, store),
                "job": job.__name__,
                "number": number + 10,
                "given": given,
                "count": count,
                "out": str(side.folder / "out"),
            }
        )


def traced(trace: Path) -> dict[str, int]:
    """Return the counts of a trace's measured part."""
    found = dict.fromkeys(("system calls", "processes started", "bytes read", "bytes written"), 0)
    begun = False
    for line in trace.read_text(errors="replace").splitlines():
        begun = begun or gate_rows.BEGIN in line
        if gate_rows.END in line:
            break
        if not begun or not (parts := _CALL.match(line)):
            continue
        _, name, rest = parts.groups()
        is_first = " resumed>" not in line
        if is_first and not _NOT_COUNTED.match(name):
            found["system calls"] += 1
        if is_first and re.match(r"v?fork|clone", name) and "CLONE_THREAD" not in rest:
            found["processes started"] += 1
        if moved := re.search(r"= (\d+)$", rest):
            if re.match(r"p?readv?|recv", name):
                found["bytes read"] += int(moved[1])
            elif re.match(r"p?writev?|send", name):
                found["bytes written"] += int(moved[1])
    if not begun:
        raise RuntimeError(f"{trace} does not have the mark at which the measured part begins")
    return found


# --- what the rows compile ------------------------------------------------------------------------


def write_sources(folder: Path) -> None:
    """Write the sources that rows read from files: CuPy's kernels, and mistakes."""
    from tests.mistakes import MISTAKES

    [record] = (ROOT / "rtcompile/extras/record/kernels_of_cupy").glob("*.json.xz")
    known = {}
    for kernel in json.loads(lzma.decompress(record.read_bytes()))["kernels"]:
        known.setdefault(kernel["name"], (kernel["source"], tuple(kernel["options"])))
    wanted = [known[f"cupy_{name}.cu"] for name in gate_rows.OF_CUPY.split()]
    (folder / gate_rows.CUPY_KERNELS).write_text(repr(wanted))
    failing = [
        {
            "source": each.source,
            "options": each.options,
            "name_expressions": each.names,
            "arch": each.arch,
            "fallback": "never",
        }
        for each in MISTAKES
        if not (each.compiles or each.options or each.timeout)
    ]
    (folder / gate_rows.FAILING).write_text(repr(failing[:FAILING_SOURCES]))


def base_checkout() -> Path:
    """Return a checkout of the base commit, made if it is missing."""
    commit = BASE.read_text().split()[0]
    folder = ROOT / ".gates" / commit
    if not folder.is_dir():
        command = ["git", "worktree", "add", "--detach", "--force", str(folder), commit]
        subprocess.run(command, cwd=ROOT, check=True)
    return folder


# --- the table ------------------------------------------------------------------------------------


def measure(row: gate_rows.Row, of: Measured, name: str) -> dict[str, Ratio]:
    """Return the ratios of a row's figures; a row that seems slower is measured once more."""
    pairs = [of.pair() for _ in range(row.pairs)]
    found = _ratios(pairs, name)
    if any(each.is_slower for each in found.values()):
        pairs += [of.pair() for _ in range(2 * row.pairs)]
        found = _ratios(pairs, name)
    return found


def _ratios(pairs: list[list[dict[str, float]]], name: str) -> dict[str, Ratio]:
    return {
        f"{name}: {figure}": ratio([(base[figure], new[figure]) for base, new in pairs])
        for figure in pairs[0][0]
    }


def grown(base: dict[str, int], new: dict[str, int]) -> list[str]:
    """Return the names of the counts that grew too much."""
    return [name for name, count in base.items() if new[name] > count * (1 + GROWTH)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", default="", help="a regular expression that a row's name contains"
    )
    parser.add_argument("--base", type=Path, help="another checkout than the base commit's")
    parser.add_argument("--new", type=Path, default=ROOT, help="the checkout to judge")
    parser.add_argument("--out", type=Path, help="a file for the figures, as JSON")
    parser.add_argument("--counts", action="store_true", help="count only, and measure no time")
    given = parser.parse_args()
    rows = {name: row for name, row in gate_rows.ROWS.items() if re.search(given.only, name)}
    base = (given.base or base_checkout()).resolve()
    new = given.new.resolve()
    if not shutil.which("strace"):
        print("strace is not installed: system calls, processes and bytes are not counted")
    for checkout in (base, new):
        compileall.compile_dir(checkout / "rtcompile", quiet=1)
    failed: list[str] = []
    report: dict[str, Any] = {
        "base": _machine.commit_of(base),
        "new": _machine.commit_of(new),
        "rows": {},
        "counts": {},
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_sources(folder)
        sides = [Side(base, folder / "base"), Side(new, folder / "new")]
        hosts = {cupy: Host(folder, cupy) for cupy in {row.cupy for row in rows.values()}}
        for title, row in rows.items():
            begun = time.monotonic()
            of = Measured(row, hosts[row.cupy], sides, re.sub(r"\W+", "-", title))
            for figure, found in ({} if given.counts else measure(row, of, title)).items():
                slower = " SLOWER" if found.is_slower else ""
                print(
                    f"{figure:58} {found.base * 1e3:9.3f} {found.new * 1e3:9.3f} ms  {found.value:.3f}"
                    f" ± {found.noise:.3f} of {found.pairs} pairs{slower}",
                    flush=True,
                )
                report["rows"][figure] = found._asdict()
                if found.is_slower:
                    failed.append(
                        f"{figure}: {found.value:.3f} ± {found.noise:.3f} of the base's time"
                    )
            before, after = of.counts(folder)
            worse = grown(before, after)
            for count in before:
                print(
                    f"    {count:24} {before[count]:9} {after[count]:9}{' MORE' if count in worse else ''}"
                )
                if count in worse:
                    failed.append(f"{title}: {count}, {after[count]} for {before[count]}")
            report["counts"][title] = [before, after]
            print(f"    ({time.monotonic() - begun:.0f} s)", flush=True)
        for host in hosts.values():
            host.close()
    if given.out:
        report = {"machine": _machine.describe(), **report, "failed": failed}
        given.out.write_text(json.dumps(report, indent=2) + "\n")
    print("\n".join(["these fail:", *failed]) if failed else "no row fails")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
