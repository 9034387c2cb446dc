"""Runs an unmodified program with all its CuPy kernels compiled by rtcompile.

`become` replaces the command's process by Python with the program. Each Python process of the run imports
`started/sitecustomize.py` first: it calls `begin`, and `take_part` when it imports CuPy's compiler or our look-up.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from json import dumps, loads
from typing import Any, NoReturn

import rtcompile
from rtcompile import InvalidRequest, RtcompileError
from rtcompile.extras.record import recording
from rtcompile.extras.record.recording import Counter, Recorder
from rtcompile.named import NamedTuple

_VARIABLE = "RTCOMPILE_RUN"
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "started")
_LOG = "rtcompile-run-"
_ABANDONED_SECONDS = 24 * 3600.0
_INCOMPLETE = 1
_NOT_RECORDED = 2


class Run(NamedTuple):
    """A run: its main process, its log, and what to do at its end."""

    process: str
    log: str
    record: str = ""
    json: bool = False
    report: bool = False
    check: bool = False
    known: int = -1  # builds in the record to check against; -1 for none


def become(
    words: Sequence[str], *, record: str, json: bool, report: bool, check: bool, nvrtc_first: bool
) -> NoReturn:
    """Replace this process by Python with a program and its arguments."""
    if sys.flags.ignore_environment or sys.flags.no_site or not sys.executable:
        raise InvalidRequest(
            "the program finds rtcompile by a sitecustomize in PYTHONPATH, which Python's -E, -I and -S "
            "pass over: run the command without them"
        )
    known = -1
    if record:
        if check:  # nothing is built
            known, record = len(recording.read(record, trust_options=True).builds), ""
        else:
            recorder = Recorder(record)
            recorder.create()
    log, record = (recorder.log, recorder.path) if record else (_new_log(), "")
    run = Run(_identity(), log, record, json, report, check, known)
    # An empty entry among others of the path is the working directory.
    given = os.environ.get("PYTHONPATH")
    before = [path for path in given.split(os.pathsep) if path != _FOLDER] if given else []
    environ = {
        **os.environ,
        _VARIABLE: dumps([each._asdict() for each in (*_runs(), run)]),
        "PYTHONPATH": os.pathsep.join([_FOLDER, *before]),
        **({"RTCOMPILE_JIT": "0"} if run.check else {}),
        **({"RTCOMPILE_FALLBACK": "nvrtc-first"} if nvrtc_first else {}),
    }
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    unbuffered = ["-u"] * getattr(sys.stdout, "write_through", False)
    os.execve(sys.executable, [sys.executable, *flags, *unbuffered, *words], environ)  # noqa: S606  # no shell is wanted


def _new_log() -> str:
    """Make the log of a run of this process; return its path."""
    descriptor, path = tempfile.mkstemp(prefix=f"{_LOG}{os.getpid()}-")
    os.close(descriptor)
    folder = os.path.dirname(path)
    for name in os.listdir(folder):
        process = name.removeprefix(_LOG).partition("-")[0]
        if name.startswith(_LOG) and not os.path.exists(f"/proc/{process}"):
            abandoned = os.path.join(folder, name)
            with suppress(OSError):  # it is another user's, or gone
                # A run whose process is not here may be on another machine.
                if time.time() - os.lstat(abandoned).st_mtime > _ABANDONED_SECONDS:
                    os.unlink(abandoned)
    return path


def _identity() -> str:
    """Return a unique identity of this process, which survives `exec`."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        started = file.read().rpartition(") ")[2].split()[19]
    return f"{os.getpid()} {started}"


def _runs() -> list[Run]:
    """Return the runs that this process is part of, from the environment variable."""
    try:
        return [Run(**fields) for fields in loads(os.environ.get(_VARIABLE, ""))]
    except (ValueError, TypeError):
        return []


# --- In each process ------------------------------------------------------------------------------

_counters: dict[str, Counter] = {}  # by their logs


def take_part(*, with_cupy: bool = False) -> None:
    """Count and record this process's requests from now on; compile CuPy's kernels if its compiler is loaded."""
    runs = _runs()
    for run in runs:
        if run.log not in _counters:
            counter = Recorder(run.record) if run.record else Counter(run.log)
            # It is stored before `start`, whose import may call this function.
            _counters[run.log] = counter
            counter.start()
    if with_cupy and runs:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run's report has it
            problem = rtcompile.install().problem
        for counter in _counters.values() if problem else ():
            counter.append(["problems", problem])


# --- What the processes counted -------------------------------------------------------------------


class Tally(NamedTuple):
    """The requests of a run, and why some of its processes' kernels are not counted."""

    builds: list[
        dict[str, Any]
    ]  # each requested kernel, with its time and the time that a hit saved
    missing: list[str]  # requests that were not in the cache where nothing could be compiled
    problems: list[str]
    by_nvcc: list[float]  # milliseconds of builds for which the program requested NVCC

    @classmethod
    def read(cls, path: str) -> Tally:
        """Return the counts in the lines of a log, ignoring a record's lines."""
        tally = cls([], [], [], [])
        try:
            with open(path, encoding="utf-8") as file:
                lines = file.readlines()
        except OSError as error:
            return cls([], [], [f"the requests could not be counted: {error}"], [])
        for line in lines:
            try:
                kind, *fields = loads(line)
            except ValueError:
                tally.problems.append(
                    "processes of the run could not write all they requested: the folder "
                    f"{os.path.dirname(path)} is full"
                )
                continue
            if kind in cls._fields:
                getattr(tally, kind).append(*fields)
        return tally

    def line(self) -> str:
        """Return one line: kernels, hits, builds, seconds saved."""
        built = [build for build in self.builds if not build["hit"]]
        spent = sum(build["milliseconds"] for build in built) / 1e3
        spared = sum(build["spared"] for build in self.builds) / 1e3
        kernels = len(self.builds)
        shared = sum(build["hit"] == "remote" for build in self.builds)
        of_stores = f" ({shared} of them from shared stores)" if shared else ""
        by_nvcc = ""
        if self.by_nvcc:
            seconds = f"{sum(self.by_nvcc) / 1e3:.1f} s"
            by_nvcc = f"; {len(self.by_nvcc)} by NVCC as requested, {seconds}: try --nvrtc-first"
        return (
            f"{kernels} kernel{'s' * (kernels != 1)}: {kernels - len(built)} from the cache{of_stores}, "
            f"{len(built)} built in {spent:.1f} s; {spared:.1f} s of compiling spared{by_nvcc}"
        )


# --- In the main process ---------------------------------------------------------------------------


def begin() -> None:
    """Report each run of which this is the main process at its end."""
    own = [run for run in _runs() if run.process == _identity()]
    if any(run.record for run in own):
        take_part()  # it imports what cannot be imported when the process ends
    if own:  # before the program's handlers: it is called after them
        atexit.register(_at_exit, own, os.getpid())


def _at_exit(runs: Sequence[Run], process: int) -> None:
    if os.getpid() != process:
        return  # a forked child
    status = max(map(_finish, runs))
    # After a KeyboardInterrupt Python ends the process by SIGINT.
    if status and not isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        import ctypes

        atexit._clear()
        ctypes.pythonapi.Py_Exit(status)  # like Python's own exit, except the status


def _finish(run: Run) -> int:
    """Report the program's builds; return the exit status of ``--check`` and ``--record``, or 0."""
    tally = Tally.read(run.log)
    lines, problems = [], tally.problems
    is_recorded = True
    if run.record:
        try:
            lines = _recorded(run)
        except (OSError, RtcompileError) as error:
            is_recorded = False
            problems.append(f"{run.record} was not written, or lacks builds: {error}")
    else:
        with suppress(OSError):
            os.unlink(run.log)
    lines = [tally.line(), *problems, *lines, *(_checked(run, tally) if run.check else ())]
    lines = [f"rtcompile: {line}" for line in lines]
    if run.json:
        fields = {"builds": tally.builds, "missing": tally.missing, "problems": problems}
        lines = [dumps(fields)]
    elif run.report:
        lines = [*_table(tally.builds), *lines]
    with suppress(OSError, ValueError, AttributeError):  # the stream is full, closed or None
        sys.stderr.write("".join(f"{line}\n" for line in lines))
    if not is_recorded:
        return _NOT_RECORDED
    # Kernels that CuPy compiled itself were not checked.
    return _INCOMPLETE if run.check and (tally.missing or problems) else 0


def _recorded(run: Run) -> list[str]:
    """Write the run's record; return lines about it."""
    counter = _counters[run.log]
    assert isinstance(counter, Recorder)
    record = counter.finish()
    count = len(record.builds)
    lines = [f"{count} build{'s' * (count != 1)} recorded in {run.record}"]
    if unsearched := record.found_by_path():
        lines.append(
            f"{unsearched[0]}{f' and {len(unsearched) - 1} more' * (len(unsearched) > 1)}: included by its path "
            "on this machine, and can be warmed only where it has the same path; give its folder by -I"
        )
    return lines


def _checked(run: Run, tally: Tally) -> list[str]:
    """Return lines about kernels that were missing while compiling was forbidden."""
    if tally.missing:
        count = len(tally.missing)
        advice = f"missing builds of the program: {count}; `rtcompile warm` builds a record"
        return [*(f"missing: {missing}" for missing in tally.missing), advice]
    return [f"complete ({run.known} builds in the record)"] if run.known >= 0 else []


def _table(builds: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each kernel, below a line of titles."""
    from rtcompile import styling

    rows = []
    for build in builds:
        spared = f"{build['spared']:.0f} ms" if build["spared"] else ""
        times = {"milliseconds": f"{build['milliseconds']:.1f} ms", "spared": spared}
        rows.append([*{**build, "hit": build["hit"] or "built", **times}.values()])
    titles = ("name", "arch", "backend", "hit", "milliseconds", "spared")
    return styling.table(titles, rows).split("\n")
