"""`RtcompileError` and its subclasses; errors of a build are instances of CuPy's classes too.

Once CuPy is loaded, `adopt_cupy` adds CuPy's exception classes as bases, so
``except cupy.cuda.compiler.CompileException`` catches rtcompile's errors too.
"""

from __future__ import annotations

import os
import sys
from _thread import _local as local

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, ParamSpec, TypeVar

    from rtcompile.diagnostic import Diagnostic
    from rtcompile.styling import Piece, Styled

    P = ParamSpec("P")
    R = TypeVar("R")

_OURS = os.path.dirname(__file__) + os.sep
_SHOWN = 60  # the most characters of a value in a message
_ERRORS_SHOWN = 5  # the most errors in the message of a `BatchError`


class RtcompileError(Exception):
    """Base of rtcompile's own errors."""

    def __str__(self) -> str:
        return printable(super().__str__())

    def __reduce__(self) -> tuple[Any, ...]:
        # Not every class has a constructor that takes `args`, and CuPy's classes pickle without our attributes.
        return Exception.__new__, (type(self), *self.args), self.__dict__

    def styled(self) -> Styled:
        """Return the message as terminals and notebooks show it, as pieces of styled text."""
        first, newline, rest = str(self).partition("\n")
        return ("error", f"{type(self).__name__}: "), ("location", first), ("", newline + rest)

    def _render_traceback_(self) -> list[str]:
        # IPython calls this method instead of formatting a traceback. The result is the message and
        # the caller's line that led to it, without rtcompile's own frames.
        pieces = [*self.styled(), *_caller(self)]
        from rtcompile import styling  # imported only when an error is shown

        return styling.as_traceback(pieces).split("\n")


def _caller(error: BaseException) -> list[Piece]:
    """Return the styled line of the caller's own code that led to an error; empty if unknown."""
    import linecache

    found: tuple[str, int] | None = None
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(_OURS) and f"{os.sep}IPython{os.sep}" not in file:
            found = file, trace.tb_lineno
        trace = trace.tb_next
    text = linecache.getline(*found).strip() if found else ""
    # A notebook cell that is only a magic is run as `get_ipython()…`, which the user did not write.
    if found is None or not text or text.startswith("get_ipython()"):
        return []
    is_cell = "ipykernel" in found[0] or found[0].startswith("<")
    location = f"line {found[1]}" if is_cell else f"{found[0]}:{found[1]}"
    return [("dim", f"\n  from {location}: "), ("", text)]


class RtcompileWarning(UserWarning):
    """A build works, but not as well as it could, for example because the cache is read-only."""


# The context of a thread that builds ahead: the list `warnings` for its warnings, and the recorded `directory` and
# `environ`, which the program may change meanwhile.
own = local()
unshown: list[str] = []  # warnings of builds ahead; the next use of a kernel raises them


def warn(text: str) -> None:
    """Warn with `RtcompileWarning` at the line of the caller's own code that led here."""
    texts: list[str] | None = getattr(own, "warnings", None)
    if texts is not None:
        texts.append(text)
        return
    import warnings

    warnings.warn(text, RtcompileWarning, stacklevel=callers_frame()[0])


def callers_frame() -> tuple[int, FrameType]:
    """Return the first frame outside rtcompile and CuPy, after the `stacklevel` with which the caller warns at it."""
    import contextlib

    level, frame = 0, sys._getframe()
    ours = (_OURS, contextlib.__file__)
    cupys = (f"{os.sep}cupy{os.sep}", f"{os.sep}cupyx{os.sep}")
    while frame.f_back is not None and (
        (file := frame.f_code.co_filename).startswith(ours) or any(each in file for each in cupys)
    ):
        level, frame = level + 1, frame.f_back
    return level, frame


class InvalidRequest(RtcompileError, TypeError, ValueError):
    """The arguments cannot describe a build (both code and path, a NUL byte, an unknown backend).

    CuPy raises TypeError for some of these and ValueError for others; this is both.
    """


class _BuildError(RtcompileError):
    """An error of a build: where CuPy is loaded, a ``cupy.cuda.compiler.CompileException`` with its methods."""

    def __init__(
        self,
        msg: str,
        source: str = "",
        name: str = "",
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
    ) -> None:
        # CuPy's __init__ is not called: it would reset `args`, and this class sets the same fields.
        self._msg = printable(msg if isinstance(msg, str) else shown(msg))
        Exception.__init__(self, self._msg)
        self.source = source
        self.name = name
        self.options = options
        self.backend = backend


class ToolkitNotFound(_BuildError):
    """A compiler, a linker or a set of headers is not installed, or their versions differ.

    The message names what was searched for and where, and says what to install.
    """


class CupyNotFound(RtcompileError, ImportError):
    """CuPy is not installed, and `RawModule` or `RawKernel` was imported."""


class UnsupportedArch(_BuildError, ValueError):
    """An architecture that this compiler, or this device, does not know."""


class JitDisabled(_BuildError):
    """A build was needed while ``RTCOMPILE_JIT=0`` forbids compiling."""


class CompileError(_BuildError):
    """The compiler rejected the source.

    Where CuPy is loaded this is also a ``cupy.cuda.compiler.CompileException``.

    Attributes
    ----------
    source : str
        The source as the compiler saw it.
    name : str
        The program's name in the log.
    options : tuple of str
        The compiler's command line.
    backend : str
        ``"nvrtc"``, ``"nvcc"`` or ``"nvjitlink"``.
    diagnostics : tuple of Diagnostic
        The log, parsed; the first real error first.
    log : str
        The log as the compiler wrote it. Where NVCC failed after NVRTC, NVRTC's log comes first, as in the
        message; `backend` and `diagnostics` are NVCC's.
    advice : tuple of str
        The paragraphs that follow the compiler's errors in the message: what else was tried, where
        the reproducer is.
    cached : bool
        Whether the error comes from the cache: an earlier build failed in this way and
        nothing that it read has changed since. ``recompile=True`` runs the compiler again.
    """

    diagnostics: tuple[Diagnostic, ...] = ()
    log: str = ""
    advice: tuple[str, ...] = ()
    cached = False
    _rendered: Styled = ()
    _first: Styled = ()  # the messages of the compiler that was tried first

    def styled(self) -> Styled:
        """Return the message as terminals and notebooks show it, as pieces of styled text."""
        return self._rendered or super().styled()

    def _repr_html_(self) -> str | None:
        from rtcompile import styling

        # For None a notebook shows the plain text.
        return styling.as_html(self._rendered) if self._rendered else None


class JitifyError(CompileError):
    """A `CompileError` of a build with ``jitify=True``; CuPy raises its ``JitifyException`` there."""

    @classmethod
    def of(cls, error: CompileError) -> JitifyError:
        """Return the error of a build as this class, with its attributes."""
        made = cls(error._msg, error.source, error.name, error.options, error.backend)
        made.__dict__.update(error.__dict__)
        return made


class LinkError(CompileError):
    """nvJitLink or ``nvcc -dlink`` rejected the inputs: a missing symbol, a wrong architecture."""


class CompilerCrashed(CompileError):
    """The compiler crashed: a segmentation fault, an abort, a memory limit.

    Attributes
    ----------
    reproducer : str or None
        A folder with the source, the headers, the options and the command that crashed.
    """

    reproducer: str | None = None


class CompileTimeout(CompilerCrashed):
    """The compiler was killed when its time limit (seconds) had passed."""


class ExecutorError(RtcompileError):
    """The executor of a batch did not run a build: a worker died, or lacks rtcompile."""


class BatchError(RtcompileError):
    """Some builds of a batch failed; raised when all are done.

    For up to five of them, the message has the position, the name and the first line of the error.

    Attributes
    ----------
    errors : dict of int to RtcompileError
        The errors, by position in the batch.
    results : list of ObjectCode or None
        The codes in the batch's order; None for a failed build.
    names : dict of int to str
        Labels of the failed builds, by position in the batch: the request's name, its name
        expressions and its architecture.
    """

    def __init__(
        self,
        errors: dict[int, RtcompileError],
        results: list[Any],
        names: dict[int, str] | None = None,
    ) -> None:
        if not (isinstance(errors, dict) and isinstance(results, (list, tuple))):
            raise InvalidRequest("a BatchError takes a dict of errors and a list of results")
        self.errors = errors
        self.results = results
        self.names = names if isinstance(names, dict) else {}
        lines = [f"{len(errors)} of {len(results)} builds failed:"]
        for index, error in [*errors.items()][:_ERRORS_SHOWN]:
            first = str(error).strip().partition("\n")[0] or type(error).__name__
            label = self.names.get(index, "")
            lines.append(f"[{index}] {label}{': ' if label else ''}{first}")
        if len(errors) > _ERRORS_SHOWN:
            lines.append(f"… and {len(errors) - _ERRORS_SHOWN} more in .errors")
        super().__init__("\n".join(lines))


def printable(text: str) -> str:
    """Return text with its lone surrogates escaped: Python puts a path's non-UTF-8 bytes into them."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def shown(value: object) -> str:
    """Return a value as a message shows it: short and printable for any type."""
    kind = type(value).__name__
    if value is None or isinstance(value, bool):
        return str(value)
    if not isinstance(value, (str, bytes, int, float)):
        return kind  # the repr of an array or a module does not help the reader
    try:
        text = repr(value)
    except ValueError:  # an int of more than 4,300 digits
        return kind
    if len(text) > _SHOWN:
        text = f"{text[:_SHOWN]}…"
    return text if type(value) is str else f"{kind} {text}"


class DriverError(RtcompileError):
    """The driver rejected a module or a launch, the module has no such name, or no device can load it.

    Where CuPy is loaded this is also a ``cupy.cuda.driver.CUDADriverError``.

    Attributes
    ----------
    status : int
        The driver's error code: 209 is ``CUDA_ERROR_NO_BINARY_FOR_GPU``.
    """

    def __init__(self, msg: str, status: int = 0) -> None:
        # CuPy's __init__ is not called: it would query the driver for the text that `msg` already contains.
        Exception.__init__(self, msg)
        self.status = status


def adopt_cupy() -> None:
    """Add CuPy's classes as bases of the errors of builds and of the driver, if CuPy is loaded."""
    # Assigning ``__bases__`` takes 0.1 ms. It also changes the class for modules that have imported it already.
    ours: Any
    for ours, module, name in (
        (_BuildError, "cupy.cuda.compiler", "CompileException"),
        (JitifyError, "cupy.cuda.compiler", "JitifyException"),
        (DriverError, "cupy_backends.cuda.api.driver", "CUDADriverError"),
    ):
        # Another thread may be importing CuPy, whose module then lacks the class.
        cupys = getattr(sys.modules.get(module), name, None)
        if cupys is not None and not issubclass(ours, cupys):
            ours.__bases__ = (*ours.__bases__, cupys)


adopt_cupy()
for _name, _class in [*globals().items()]:
    if isinstance(_class, type) and issubclass(_class, Exception) and _name[0] != "_":
        _class.__module__ = "rtcompile"  # its public module, also for pickling


def unchained(error: RtcompileError) -> RtcompileError:
    """Return an error without chained exceptions and without a traceback."""
    error.__cause__ = error.__context__ = None
    error.__suppress_context__ = False
    return error.with_traceback(None)


_LIMITS = {  # by the name of the system's error
    "EMFILE": "a process may have no more files open here (`ulimit -n`), and a build needs some more. Close files that the "
    "program keeps open, or run `ulimit -n 1024` before it.",
    "EAGAIN": "no more processes may be started here (`ulimit -u`, or a container's `pids.max`), and a build needs "
    "two. Raise the limit, lower RTCOMPILE_JOBS, or end processes and threads.",
    "EFBIG": "a process may not write files of this size here (`ulimit -f`). Run `ulimit -f unlimited` before the "
    "program.",
}


def limit_reached(number: int | None) -> RtcompileError | None:
    """Return the error for the `errno` of a ``ulimit``, None for others. It opens no file, since none may be left."""
    import errno

    text = _LIMITS.get(errno.errorcode.get(number or 0, ""))
    return RtcompileError(f"{os.strerror(number or 0)}: {text}") if text else None


def inside_import() -> RtcompileError | None:
    """Return the error for a signal handler or finalizer that interrupted an import of a part of rtcompile."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        # These names are undocumented; if Python changes them, its own error is raised.
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            part = str(frame.f_locals.get("name", ""))
            if part.partition(".")[0] == "rtcompile":
                return RtcompileError(
                    f"rtcompile was called while this thread was importing {part}, which is incomplete "
                    "until the caller, such as a signal handler or a finalizer, has returned. Let the caller "
                    "start a thread that builds, or build something before the caller can run."
                )
        frame = frame.f_back
    return None


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Let errors leave `function` with only one frame of rtcompile in the traceback."""

    def edge(*args: P.args, **kwargs: P.kwargs) -> R:
        __tracebackhide__ = True  # IPython and pytest hide this frame
        try:
            return function(*args, **kwargs)
        except RtcompileError as caught:
            error = caught
            adopt_cupy()
        except OSError as caught:
            limit = limit_reached(caught.errno)
            if limit is None:
                raise
            error = limit
        except (AttributeError, ImportError):
            if (found := inside_import()) is None:
                raise
            error = found
        # Raised outside the except clause, so Python chains only the caller's own exception.
        raise unchained(error)

    # Like `functools.wraps`, whose import takes a third of a hit's time.
    for name in ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__"):
        if hasattr(function, name):
            setattr(edge, name, getattr(function, name))
    edge.__dict__.update(function.__dict__, __wrapped__=function)
    return edge
