"""Counts the kernels that a program and its child processes request, and the hits among them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from rtcompile.errors import JitDisabled, RtcompileError, ToolkitNotFound
from rtcompile.lookup.find import listeners

if TYPE_CHECKING:
    from rtcompile.request.object_code import ObjectCode
    from rtcompile.request.request import CompileRequest


_VARIABLE = "RTCOMPILE_RUN"
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "started")
_PREFIX = "rtcompile-run-"
_ABANDONED_SECONDS = 24 * 3600.0


class KernelUse(NamedTuple):
    """One kernel that a program requested, with the times that it took and that a hit spared."""

    name: str
    arch: str
    backend: str
    hit: str
    milliseconds: float
    spared: float


class Tally:
    """The requests of a run, also those of its other processes after `collect`."""

    def __init__(self, of_run: tuple[str, int] | None = None) -> None:
        self.builds: list[KernelUse] = []  # what was requested and found or built
        # Requests that were not in the cache where nothing could be compiled.
        self.missing: list[str] = []
        # Why other processes of the run compile kernels that are not counted.
        self.problems: list[str] = []
        # Other processes append to this file. It is not kept open: a program may close descriptors
        # that it did not open, and reuse their numbers.
        self.of_children, self._process = of_run or (_new_file(), os.getpid())

    def line(self) -> str:
        """Return one line: kernels, hits, built, seconds spared."""
        built = [build for build in self.builds if not build.hit]
        spent = sum(build.milliseconds for build in built) / 1e3
        spared = sum(build.spared for build in self.builds) / 1e3
        kernels = len(self.builds)
        shared = sum(build.hit == "remote" for build in self.builds)
        of_stores = f" ({shared} of them from shared stores)" if shared else ""
        return (
            f"{kernels} kernel{'s' * (kernels != 1)}: {kernels - len(built)} from the cache{of_stores}, "
            f"{len(built)} built in {spent:.1f} s; {spared:.1f} s of compiling spared"
        )

    def note(self, request: CompileRequest, outcome: ObjectCode | RtcompileError) -> None:
        """Count a build; one that failed counts only if compiling was forbidden or impossible."""
        if isinstance(outcome, (JitDisabled, ToolkitNotFound)):
            self._add(self.missing, str(outcome).partition("\n")[0])
        if isinstance(outcome, RtcompileError):
            return
        build = outcome.build
        spared = build.compiled_in if build.hit else 0.0
        how = build.backend, build.hit or "", build.milliseconds, spared
        self._add(self.builds, KernelUse(request.name, str(outcome.arch), *how))

    def note_problem(self, problem: str) -> None:
        """Note that this process compiles kernels that are not counted."""
        self._add(self.problems, {"problem": problem})

    def collect(self) -> None:
        """Add what other processes of the run requested."""
        try:
            with open(self.of_children, encoding="utf-8") as file:
                lines = file.readlines()
        except OSError:  # no other process wrote the file
            return
        self.discard()
        for line in lines:
            try:
                found = json.loads(line)
            except ValueError:
                self.problems.append(
                    "other processes of the run could not write all they requested: the folder "
                    f"{os.path.dirname(self.of_children)} is full"
                )
                continue
            if isinstance(found, str):
                self.missing.append(found)
            elif isinstance(found, dict):
                self.problems.append(found["problem"])
            else:
                self.builds.append(KernelUse(*found))

    def discard(self) -> None:
        """Remove the file that other processes write after `collect`, which nobody reads."""
        if os.getpid() == self._process:
            with suppress(OSError):
                os.unlink(self.of_children)

    def _add(self, of: list[Any], what: Any) -> None:
        if os.getpid() == self._process:
            of.append(what)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError):
            if not _is_running(self._process):  # nobody would read or remove the file
                return
            if not os.path.exists(self.of_children):
                _remove_abandoned(os.path.dirname(self.of_children))
            descriptor = os.open(self.of_children, flags, 0o600)
            try:
                os.write(descriptor, (json.dumps(what) + "\n").encode())
            finally:
                os.close(descriptor)


def _new_file() -> str:
    """Return the path of a new file that other processes can write, whatever their working directory."""
    folders = (os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # the name is random
    usable = (f for f in folders if os.path.isabs(f) and os.access(f, os.W_OK | os.X_OK))
    name = f"{_PREFIX}{os.getpid()}-{os.urandom(12).hex()}"
    return os.path.join(next(usable, "/tmp"), name)  # noqa: S108


def _remove_abandoned(folder: str) -> None:
    """Remove the files of killed runs after a day, since a run may be on another machine."""
    for name in os.listdir(folder):
        process = name.removeprefix(_PREFIX).partition("-")[0]
        if not name.startswith(_PREFIX) or not process.isdecimal() or _is_running(int(process)):
            continue
        path = os.path.join(folder, name)
        with suppress(OSError):  # it is another user's, or gone
            if time.time() - os.lstat(path).st_mtime > _ABANDONED_SECONDS:
                os.unlink(path)


def _is_running(process: int) -> bool:
    """Return whether a process is running. A zombie is not, although it can be signalled."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            state = file.read().rpartition(b") ")[2][:1]
    except OSError:
        return False
    return state not in (b"Z", b"X")


@contextmanager
def counting() -> Iterator[Tally]:
    """Count the requests of all threads in the body of ``with``."""
    tally = Tally()
    listeners.append(tally.note)
    try:
        yield tally
    finally:
        listeners.remove(tally.note)


# --- Processes that the program starts ------------------------------------------------------------

_takes_part = False
_own: set[str] = set()  # the files of the runs that this process began


def count_children(tally: Tally, record: str) -> None:
    """Let processes started from now on add to `tally`, and to the `record` if there is one."""
    run = {"requests": tally.of_children, "process": os.getpid(), "record": record}
    _own.add(tally.of_children)
    os.environ[_VARIABLE] = json.dumps([*_runs(), run])
    # An empty entry among others is the working directory.
    given = os.environ.get("PYTHONPATH")
    before = [path for path in given.split(os.pathsep) if path != _FOLDER] if given else []
    os.environ["PYTHONPATH"] = os.pathsep.join([_FOLDER, *before])


def take_part(compiler: ModuleType | None) -> None:
    """Count and record this process's requests from now on; install in CuPy's compiler module if given."""
    global _takes_part
    if not _takes_part:
        _takes_part = True
        _tallies.extend(_join(run) for run in _runs() if run["requests"] not in _own)
    if compiler is not None and _tallies:
        from rtcompile.frontends import cupy_hook

        problem = cupy_hook.install_in(compiler).problem
        for tally in _tallies if problem else ():
            tally.note_problem(problem)


_tallies: list[Tally] = []


def _join(run: dict[str, Any]) -> Tally:
    """Count and record this process's requests for a run that another process began."""
    tally = Tally((run["requests"], run["process"]))
    listeners.append(tally.note)
    if run["record"]:
        from rtcompile.extras.record.recording import Recorder

        Recorder(run["record"]).join()
    return tally


def _runs() -> list[dict[str, Any]]:
    """Return the runs that this process is part of, from the environment variable."""
    try:
        runs = json.loads(os.environ.get(_VARIABLE, ""))
        for run in runs:
            run["requests"], run["process"], run["record"]
    except (ValueError, TypeError, KeyError):
        return []
    return list(runs)
