"""Runs an unmodified program as ``python`` runs it, with all its CuPy kernels compiled by rtcompile.

The process is the program's from then on: ``__main__``, ``sys.argv`` and ``sys.path`` stay as they are
when its main code has ended, since its threads and exit handlers still need them.
"""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

from rtcompile.errors import InvalidRequest
from rtcompile.extras.record.started.sitecustomize import COMPILER, Finder
from rtcompile.frontends import cupy_hook

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Program(NamedTuple):
    """A script, or with `is_module` a module, and its command line arguments."""

    target: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False

    def run(
        self, before_a_signal: Callable[[int], object], if_not_installed: Callable[[str], object]
    ) -> int:
        """Run it as ``python`` would; return its exit status, negative for a signal."""
        script = None if self.is_module or _is_searchable(self.target) else _read(self.target)
        _install_when_cupy_is_imported(if_not_installed)
        with _before_a_signal_ends_it(before_a_signal):
            status = self._status(script)
            try:
                # A thread that still runs may request kernels.
                for thread in threading.enumerate():
                    if thread is not threading.main_thread() and not thread.daemon:
                        thread.join()
            except KeyboardInterrupt:
                status = -signal.SIGINT
        return status

    def _status(self, script: bytes | None) -> int:
        try:
            self._run_as_main(script)
        except SystemExit as end:
            return _status(end)
        except KeyboardInterrupt:
            _show(sys.exc_info())
            return -signal.SIGINT
        except BaseException:  # noqa: BLE001  # a program may raise anything, and its traceback is shown
            _show(sys.exc_info())
            return 1
        return 0

    def _run_as_main(self, script: bytes | None) -> None:
        main = ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        if sys.version_info < (3, 14):  # from 3.14 on Python creates it on demand
            main.__dict__.update(__annotations__={})
        sys.modules["__main__"] = main
        sys.argv = ["-m" if self.is_module else self.target, *self.arguments]
        # Python's own functions for ``python -m`` and for a folder or an archive with a __main__.py.
        run_module: Callable[..., Any] = runpy._run_module_as_main  # type: ignore[attr-defined]
        if self.is_module:
            _search_first(os.getcwd())
            run_module(self.target)
        elif script is None:
            _search_first(os.path.abspath(self.target), always=True)
            run_module("__main__", alter_argv=False)
        else:
            _search_first(os.path.dirname(os.path.realpath(self.target)))
            exec(_code(main, os.path.join(os.getcwd(), self.target), script), main.__dict__)  # noqa: S102  # the program that the user asks to run


def _read(path: str) -> bytes:
    try:
        with io.open_code(os.path.abspath(path)) as file:
            return file.read()
    except OSError as error:
        raise InvalidRequest(f"{path}: cannot be run: {error.strerror}") from None


def _code(main: ModuleType, path: str, data: bytes) -> CodeType:
    """Return a script's code, with the module's attributes set as Python sets them for a script."""
    is_compiled = data.startswith(importlib.util.MAGIC_NUMBER)
    loader = (SourcelessFileLoader if is_compiled else SourceFileLoader)("__main__", path)
    main.__dict__.update(__file__=path, __cached__=None, __loader__=loader)
    if is_compiled:
        code = loader.get_code("__main__")
    else:
        code = compile(data, path, "exec", dont_inherit=True)
    assert isinstance(code, CodeType)
    return code


def _is_searchable(path: str) -> bool:
    """Return whether a path is a folder or an archive, in which ``__main__`` is looked for."""
    for hook in sys.path_hooks:
        try:
            return hook(path) is not None
        except ImportError:
            continue
    return False


def _search_first(folder: str, always: bool = False) -> None:
    """Make a folder the first of `sys.path`, instead of the command's own folder."""
    if not getattr(sys.flags, "safe_path", sys.flags.isolated):  # otherwise Python added no folder
        sys.path[0] = folder
    elif always:
        sys.path.insert(0, folder)


def _status(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def _show(error: Any) -> None:
    """Show the program's exception, from its own first frame on."""
    kind, value, traceback = error
    while traceback is not None and _is_ours(traceback.tb_frame):
        traceback = traceback.tb_next
    sys.excepthook(kind, value.with_traceback(traceback), traceback)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "rtcompile"


# --- Signals --------------------------------------------------------------------------------------


@contextmanager
def _before_a_signal_ends_it(act: Callable[[int], object]) -> Iterator[None]:
    """Call `act` before a signal ends the process; the process then ends by the same signal."""

    def end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001  # the signature of a handler
        act(number)
        end_by(number)

    def forget() -> None:
        for number in _ENDING:
            if signal.getsignal(number) is end:
                signal.signal(number, signal.SIG_DFL)

    # The first process of a container is not ended by a signal that it has no handler for.
    if threading.current_thread() is threading.main_thread() and os.getpid() != 1:
        for number in _ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, end)
        _in_forked_children(forget)
    try:
        yield
    finally:
        forget()


def _in_forked_children(forget: Callable[[], None]) -> None:
    """Remove the handlers in forked children, which could not be ended while waiting for a lock."""
    masks = threading.local()

    def before() -> None:
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)

    def in_parent() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def in_child() -> None:
        forget()
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


def end_by(number: int) -> None:
    """End this process by a signal, so its parent sees what ended it."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


# --- Installing when the program imports CuPy ------------------------------------------------------


def _install_when_cupy_is_imported(if_not: Callable[[str], object]) -> None:
    """Install now if CuPy is loaded, else when the program imports it."""
    compiler = sys.modules.get(COMPILER)
    if compiler is not None:
        _install(compiler, if_not)
    else:
        sys.meta_path.insert(0, Finder((COMPILER,), lambda module: _install(module, if_not)))


def _install(compiler: ModuleType, if_not: Callable[[str], object]) -> None:
    problem = cupy_hook.install_in(compiler).problem
    if problem:  # a warning might be an error in this program, which must run as usual
        if_not(problem)
