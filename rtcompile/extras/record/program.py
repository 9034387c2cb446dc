"""Runs an unmodified program with all its CuPy kernels compiled by rtcompile.

`become` replaces the command's process by Python with the program. Each Python process of the run imports
`started/sitecustomize.py` first: it calls `begin`, and `take_part` when it imports CuPy's compiler or our look-up.
"""

from __future__ import annotations

import atexit
import errno
import os
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from json import dumps, loads
from typing import TYPE_CHECKING, Any, NoReturn

import rtcompile
from rtcompile import InvalidRequest, JitDisabled, RtcompileError, ToolkitNotFound, __version__
from rtcompile.errors import callers_frame
from rtcompile.files import sealed
from rtcompile.named import NamedTuple

if TYPE_CHECKING:
    from argparse import Namespace

    from rtcompile import CompileRequest, ObjectCode
    from rtcompile.extras.record.recording import Record, RecordedBuild

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
    check: bool = False


def become(given: Namespace) -> NoReturn:
    """Replace this process by Python with the program of ``rtcompile run``, whose end reports its builds."""
    from rtcompile.request.values import absolute

    words = list(given.program)
    if given.module_and_arguments is not None:
        words = ["-m", *given.module_and_arguments, *words]
    if not words or words == ["-m"]:
        raise InvalidRequest("no program given: `rtcompile run script.py`, or `-m module`")
    record = absolute(given.record) if given.record else ""
    if sys.flags.ignore_environment or sys.flags.no_site or not sys.executable:
        raise InvalidRequest(
            "the program finds rtcompile by a sitecustomize in PYTHONPATH, which Python's -E, -I and -S "
            "pass over: run the command without them"
        )
    if record and given.check:
        raise InvalidRequest(
            "--check forbids builds, and --record is for a run that builds: give one"
        )
    log = Recorder.create(record).log if record else _new_log()
    run = Run(_identity(), log, record, given.json, given.check)
    # An empty entry among others of the path is the working directory.
    paths = os.environ.get("PYTHONPATH")
    before = [path for path in paths.split(os.pathsep) if path != _FOLDER] if paths else []
    environ = {
        **os.environ,
        _VARIABLE: dumps(run._asdict()),
        "PYTHONPATH": os.pathsep.join([_FOLDER, *before]),
        **({"RTCOMPILE_JIT": "0"} if run.check else {}),
    }
    flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    unbuffered = ["-u"] * getattr(sys.stdout, "write_through", False)
    os.execve(sys.executable, [sys.executable, *flags, *unbuffered, *words], environ)  # noqa: S606  # no shell is wanted


def _new_log() -> str:
    """Make the log of a run of this process, and remove abandoned logs; return its path."""
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


def _run() -> Run | None:
    """Return the run that this process is part of, from the environment variable."""
    try:
        return Run(**loads(os.environ.get(_VARIABLE, "")))
    except (ValueError, TypeError):
        return None


# --- In each process ------------------------------------------------------------------------------

_recorder: Recorder | None = None


def take_part(*, with_cupy: bool = False) -> None:
    """Count and record this process's requests from now on; compile CuPy's kernels if its compiler is loaded."""
    global _recorder
    run = _run()
    if run is None:
        return
    if _recorder is None:
        # It is stored before `start`, whose import may call this function.
        _recorder = Recorder(run.log, run.record)
        _recorder.start()
    if with_cupy:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run's report has it
            problem = rtcompile.install().problem
        if problem:
            _recorder.append(["problems", problem])


class Recorder:
    """Appends the requests of this process to a log, as lines of JSON: counts, and the builds of a record."""

    def __init__(self, log: str, record: str = "") -> None:
        self.log = log
        self.record = record  # the file that `finish` writes; "" for a run without a record
        self.problem: OSError | None = None  # such as a full disk, which must not stop the program
        self._written: set[object] = set()

    @classmethod
    def create(cls, record: str) -> Recorder:
        """Begin a new record, with ``FILE.part`` as log; raise OSError if the file cannot be written."""
        if os.path.isdir(record):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), record)
        made = cls(f"{record}.part", record)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        os.close(os.open(made.log, flags, 0o644))
        made._append([], {})
        return made

    def start(self) -> None:
        """Count and record all requests from now on."""
        from rtcompile.lookup.find import listeners  # importing it makes a process take part

        if self.record:
            from rtcompile.extras.record import recording as recording  # not when the process ends
        listeners.append(self.note)

    def finish(self) -> Record:
        """Stop, and write the whole record."""
        from rtcompile.extras.record import recording
        from rtcompile.lookup.find import listeners

        with suppress(ValueError):
            listeners.remove(self.note)
        record = recording.read(self.log, trust_options=True)
        text = dumps(record.encode(), indent=1)
        sealed.publish(self.record, f"{text}\n".encode(), durable=False, mode=0o666)
        os.unlink(self.log)
        if self.problem is not None:
            raise self.problem
        return record

    def note(self, request: CompileRequest, outcome: ObjectCode | RtcompileError) -> None:
        """Count a build, and record it; one that failed counts only if compiling was forbidden or impossible."""
        if isinstance(outcome, (JitDisabled, ToolkitNotFound)):
            self.append(["missing", str(outcome).partition("\n")[0]])
        if isinstance(outcome, RtcompileError):
            return
        build = outcome.build
        use = {
            "name": request.name,
            "arch": str(outcome.arch),
            "requested": request.backend,
            "backend": build.backend,
            "hit": build.hit or "",
            "milliseconds": build.milliseconds,
            "saved": build.compiled_in if build.hit else 0.0,
        }
        self.append(["builds", use])
        if not self.record:
            return
        from rtcompile.extras.record.recording import RecordedBuild

        frame = callers_frame()[1]
        at = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        recorded = RecordedBuild.of(request, outcome, at)
        headers = {}
        for label, _, path, digest in recorded.headers:
            if label.startswith("user") and self._is_new(digest):
                # If it was removed or changed meanwhile, `recording.warm` reports that.
                with suppress(OSError):
                    headers[digest] = sealed.read_given(path).decode("utf-8", "surrogateescape")
        if self._is_new(recorded._replace(milliseconds=0.0)):
            self._append([recorded], headers)

    def append(self, line: Any) -> None:
        """Append a line in one write, unless the run has ended and its log is gone."""
        # The log is not kept open: a program may close descriptors that it did not open.
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(self.log, flags), "ab", buffering=0) as log:
                log.write((dumps(line) + "\n").encode())
        except OSError as error:
            self.problem = error

    def _append(self, builds: list[RecordedBuild], headers: dict[str, str]) -> None:
        from rtcompile.extras.record.recording import Record

        # CuPy is not loaded yet when recording starts.
        cupy = getattr(sys.modules.get("cupy._version"), "__version__", "")
        versions = {"rtcompile": __version__, "cupy": cupy}
        self.append(Record(versions, builds, headers).encode())

    def _is_new(self, what: object) -> bool:
        # Two threads may both write the same, which `recording.read` merges.
        new = what not in self._written
        self._written.add(what)
        return new


# --- What the processes counted -------------------------------------------------------------------


class Tally(NamedTuple):
    """The requests of a run, and why some of its processes' kernels are not counted."""

    # Each requested kernel, with its time and the time that a hit saved.
    builds: list[dict[str, Any]]
    missing: list[str]  # requests that were not in the cache where nothing could be compiled
    problems: list[str]

    @classmethod
    def read(cls, path: str) -> Tally:
        """Return the counts in the lines of a log, ignoring a record's lines."""
        tally = cls([], [], [])
        try:
            with open(path, encoding="utf-8") as file:
                lines = file.readlines()
        except OSError as error:
            return cls([], [], [f"the requests could not be counted: {error}"])
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
        saved = sum(build["saved"] for build in self.builds) / 1e3
        kernels = len(self.builds)
        shared = sum(build["hit"] == "remote" for build in self.builds)
        of_stores = f" ({shared} of them from shared stores)" if shared else ""
        times = [b["milliseconds"] for b in built if b["requested"] == b["backend"] == "nvcc"]
        by_nvcc = f"; {len(times)} by NVCC as requested, {sum(times) / 1e3:.1f} s" if times else ""
        if by_nvcc and os.environ.get("RTCOMPILE_FALLBACK") != "nvrtc-first":
            by_nvcc += ": try RTCOMPILE_FALLBACK=nvrtc-first"
        return (
            f"{kernels} kernel{'s' * (kernels != 1)}: {kernels - len(built)} from the cache{of_stores}, "
            f"{len(built)} built in {spent:.1f} s; {saved:.1f} s of compiling saved{by_nvcc}"
        )


# --- In the main process ---------------------------------------------------------------------------


def begin() -> None:
    """Report the run at its end, if this is its main process."""
    run = _run()
    if run is None or run.process != _identity():
        return
    if run.record:
        take_part()  # it imports what cannot be imported when the process ends
    atexit.register(_at_exit, run, os.getpid())  # before the program's handlers: called after them


def _at_exit(run: Run, process: int) -> None:
    if os.getpid() != process:
        return  # a forked child
    status = _finish(run)
    # After a KeyboardInterrupt Python ends the process by SIGINT.
    if status and not isinstance(getattr(sys, "last_value", None), KeyboardInterrupt):
        import ctypes

        atexit._clear()
        ctypes.pythonapi.Py_Exit(status)  # like Python's own exit, except the status


def _finish(run: Run) -> int:
    """Report the program's builds; return the exit status of ``--check`` and ``--record``, or 0."""
    tally = Tally.read(run.log)
    lines, problems, missing = [], tally.problems, tally.missing
    status = 0
    if run.record:
        try:
            lines = _recorded(run)
        except (OSError, RtcompileError) as error:
            status = _NOT_RECORDED
            problems.append(f"{run.record} was not written, or lacks builds: {error}")
    else:
        with suppress(OSError):
            os.unlink(run.log)
    if run.check and missing:
        lines = [f"missing: {each}" for each in missing]
        advice = "`rtcompile warm` builds a record"
        lines.append(f"missing builds of the program: {len(missing)}; {advice}")
    lines = [f"rtcompile: {line}" for line in (tally.line(), *problems, *lines)]
    if run.json:
        lines = [dumps({"builds": tally.builds, "missing": missing, "problems": problems})]
    with suppress(OSError, ValueError, AttributeError):  # the stream is full, closed or None
        sys.stderr.write("".join(f"{line}\n" for line in lines))
    # Kernels that CuPy compiled itself were not checked.
    return _INCOMPLETE if run.check and (missing or problems) else status


def _recorded(run: Run) -> list[str]:
    """Write the run's record; return lines about it."""
    assert _recorder is not None
    record = _recorder.finish()
    count = len(record.builds)
    lines = [f"{count} build{'s' * (count != 1)} recorded in {run.record}"]
    if unsearched := record.found_by_path():
        lines.append(
            f"{unsearched[0]}{f' and {len(unsearched) - 1} more' * (len(unsearched) > 1)}: included by its path "
            "on this machine, and can be warmed only where it has the same path; give its folder by -I"
        )
    return lines
