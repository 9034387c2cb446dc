"""Runs an unmodified program with all its CuPy kernels compiled by rtcompile, and counts them."""

from __future__ import annotations

import importlib.util
import os
import runpy
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from rtcompile.cache import answers
from rtcompile.cache.answers import Answer
from rtcompile.core.request import CompileRequest, ObjectCode
from rtcompile.errors import InvalidRequest, JitDisabled, RtcompileError
from rtcompile.everywhere import seam
from rtcompile.watching import logs

__all__ = ["KernelUse", "Program", "Tally", "counting"]

_COMPILER = "cupy.cuda.compiler"


class KernelUse(NamedTuple):
    """One kernel or module that a program requested.

    `spared` is the time in milliseconds that the compiler took when it was built, 0 if it was built
    in this run; `milliseconds` is the time of this call.
    """

    name: str
    arch: str
    backend: str
    hit: str
    milliseconds: float
    spared: float


def _build(name: str, code: ObjectCode) -> KernelUse:
    build = code.build
    spared = build.compiled_in if build.hit else 0.0
    return KernelUse(
        name, str(code.arch), build.backend, build.hit or "", build.milliseconds, spared
    )


def _of_answer(name: str, answer: Answer) -> KernelUse:
    return _build(name, answer.object_code())


class Tally:
    """The requests of a run.

    Attributes
    ----------
    missing : list of str
        The requests under ``RTCOMPILE_JIT=0`` that were not in the cache.
    """

    def __init__(self) -> None:
        self._built: list[KernelUse] = []
        self._answers: list[tuple[str, Answer]] = []
        self.missing: list[str] = []

    @property
    def builds(self) -> list[KernelUse]:
        """What was asked for, hits of the short road first."""
        return [_of_answer(*pair) for pair in self._answers] + self._built

    def line(self) -> str:
        """Return one line: kernels, hits, built, seconds spared."""
        builds = self.builds
        built = [build for build in builds if not build.hit]
        spent = sum(build.milliseconds for build in built) / 1e3
        spared = sum(build.spared for build in builds) / 1e3
        kernels = len(builds)
        return (
            f"{kernels} kernel{'s' * (kernels != 1)}: {kernels - len(built)} from the cache, "
            f"{len(built)} built in {spent:.1f} s; {spared:.1f} s of compiling spared"
        )

    def note(self, request: CompileRequest, outcome: ObjectCode | RtcompileError) -> None:
        """Count a build; one that failed counts only if compiling was forbidden."""
        if isinstance(outcome, JitDisabled):
            self.missing.append(str(outcome).partition("\n")[0])
        if not isinstance(outcome, ObjectCode):
            return
        self._built.append(_build(request.name, outcome))

    def note_answer(self, words: Sequence[str], answer: Answer) -> None:
        """Take a hit of the short road into account; its story is read when it is told."""
        self._answers.append((seam.program_name(words[0]), answer))


@contextmanager
def counting() -> Iterator[Tally]:
    """Count the requests of all threads meanwhile."""
    tally = Tally()
    logs.counters.append(tally.note)
    answers.watchers.append(tally.note_answer)
    try:
        yield tally
    finally:
        answers.watchers.remove(tally.note_answer)
        logs.counters.remove(tally.note)


class Program(NamedTuple):
    """A script, or with `is_module` a module, and its command line arguments."""

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    def run(self) -> int:
        """Run it as ``python`` would; return its exit status.

        The program sees its own ``sys.argv`` and ``__main__``. An exception that it does not catch
        is shown as Python shows it, without frames of ours, and its status is 1.
        """
        if not self.is_module and not os.path.exists(self.target):
            raise InvalidRequest(f"{self.target}: there is no such file to run")
        before = sys.argv, sys.path[:]
        _install_when_cupy_is_imported()
        sys.argv = [self.target, *self.arguments]
        sys.path.insert(0, os.getcwd() if self.is_module else _folder(self.target))
        try:
            with _termination_as_exit():
                if self.is_module:
                    runpy.run_module(self.target, run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(self.target, run_name="__main__")
                # A thread that still runs may request kernels.
                for thread in threading.enumerate():
                    if thread is not threading.main_thread() and not thread.daemon:
                        thread.join()
        except SystemExit as end:
            return _status(end)
        except KeyboardInterrupt:
            _show(sys.exc_info())
            return 130
        except BaseException:
            _show(sys.exc_info())
            return 1
        finally:
            sys.argv, sys.path[:] = before
            seam.uninstall()
        return 0


def _folder(script: str) -> str:
    return os.path.dirname(os.path.realpath(script))


def _status(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1


def _show(error: Any) -> None:
    """Show the program's exception, from its own first frame on."""
    kind, value, traceback = error
    while traceback is not None and _is_ours(traceback.tb_frame):
        traceback = traceback.tb_next
    sys.excepthook(kind, value.with_traceback(traceback), traceback)


def _is_ours(frame: FrameType) -> bool:
    name = str(frame.f_globals.get("__name__", ""))
    return name.partition(".")[0] in ("rtcompile", "runpy") or "runpy" in frame.f_code.co_filename


@contextmanager
def _termination_as_exit() -> Iterator[None]:
    """Let SIGTERM end the program by an exception, so that the record is written."""
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield
        return

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


# --- CuPy, whenever the program imports it --------------------------------------------------------


def _install_when_cupy_is_imported() -> None:
    """Install now if CuPy is loaded, else when the program imports it."""
    compiler = sys.modules.get(_COMPILER)
    if compiler is not None:
        seam.install_in(compiler)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Installs rtcompile as soon as CuPy's compiler module, found by other finders, is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _COMPILER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Loads a module with its own loader, then installs rtcompile in it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        seam.install_in(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
