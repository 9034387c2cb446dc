"""Every error a caller can meet is an `RtcompileError`; the compile errors are CuPy's too.

Nothing here imports CuPy. Where CuPy is loaded, `adopt_cupy()` puts CuPy's exception classes
under ours, so that ``except cupy.cuda.compiler.CompileException`` written for `cupy.RawModule`
keeps catching. It is called wherever CuPy enters (`kernels`) and before a compile error is raised.
"""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rtcompile.messages.diagnostics import Diagnostic

__all__ = [
    "BatchError",
    "CompileError",
    "CompileTimeout",
    "CompilerCrashed",
    "InvalidRequest",
    "JitDisabled",
    "JitifyError",
    "LinkError",
    "RtcompileError",
    "RtcompileWarning",
    "ToolkitNotFound",
    "UnsupportedArch",
    "adopt_cupy",
    "shown",
]

_SHOWN = 60  # characters of a value in a message
_ERRORS_SHOWN = 5  # of a batch


class RtcompileError(Exception):
    """Base of every error that rtcompile raises."""

    def __str__(self) -> str:
        return printable(super().__str__())


class RtcompileWarning(UserWarning):
    """Something works less well than it should: a cache that cannot be written, for one."""


class InvalidRequest(RtcompileError, TypeError, ValueError):
    """The arguments cannot describe a build (both code and path, a NUL byte, an unknown backend).

    CuPy raises TypeError for some of these and ValueError for others; this is both.
    """


class ToolkitNotFound(RtcompileError):
    """A compiler, a linker or a header set is not installed, or not of one version.

    The message names what was looked for, where, and what to install.
    """


class UnsupportedArch(RtcompileError, ValueError):
    """An architecture that this compiler, or this device, does not know."""


class JitDisabled(RtcompileError):
    """A build was needed while ``RTCOMPILE_JIT=0`` forbids compiling."""


class CompileError(RtcompileError):
    """The compiler refused the source.

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
        The log as the compiler wrote it.
    html : str
        The message as a notebook shows it; empty where the text is all there is.
    """

    html: str = ""

    def __init__(
        self,
        msg: str,
        source: str = "",
        name: str = "",
        options: tuple[str, ...] = (),
        backend: str = "nvrtc",
        *,
        diagnostics: tuple[Diagnostic, ...] = (),
        log: str = "",
    ) -> None:
        # CuPy's __init__ is not called: it would reset args, and ours already carries its fields.
        Exception.__init__(self, msg)
        self._msg = printable(msg)
        self.source = source
        self.name = name
        self.options = options
        self.backend = backend
        self.diagnostics = diagnostics
        self.log = log

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self._msg, self.source, self.name, self.options, self.backend)
        return type(self), arguments, self.__dict__

    def __str__(self) -> str:
        return self._msg

    def __repr__(self) -> str:
        return self._msg

    def _repr_html_(self) -> str | None:
        return self.html or None  # None: a notebook shows the text

    def get_message(self) -> str:
        """Return the message, as CuPy's exception does."""
        return self._msg

    def dump(self, f: IO[str]) -> None:
        """Write the message, the options and the numbered source to `f`, in CuPy's layout."""
        lines = self.source.split("\n")
        digits = len(str(len(lines)))
        f.write(f"{self.backend.upper()} compilation error: {self}\n-----\n")
        f.write(f"Name: {self.name}\nOptions: {' '.join(self.options)}\nCUDA source:\n")
        f.writelines(f"{i:0{digits}d} {line.rstrip()}\n" for i, line in enumerate(lines, 1))
        f.write("-----\n")
        f.flush()


class JitifyError(CompileError):
    """A `CompileError` of a build with ``jitify=True``; CuPy raises its ``JitifyException`` there."""


class LinkError(CompileError):
    """nvJitLink or ``nvcc -dlink`` refused the inputs: a missing symbol, a wrong architecture."""


class CompilerCrashed(CompileError):
    """The compiler died: a segmentation fault, an abort, a memory limit.

    Attributes
    ----------
    reproducer : str or None
        A folder with the source, the headers, the options and the command that crashed.
    """

    reproducer: str | None = None


class CompileTimeout(CompilerCrashed):
    """The compiler was killed when its time limit (seconds) had passed."""


class BatchError(RtcompileError):
    """Some builds of a batch failed; raised when all are done.

    The message gives for each, up to five, its position, its name and the first line of its error.

    Attributes
    ----------
    errors : dict of int to RtcompileError
        Position in the batch to error.
    results : list of ObjectCode or None
        In the batch's order; None where it failed.
    names : dict of int to str
        Position in the batch to what was to be built, for those that failed: the request's name and
        its name expressions.
    """

    def __init__(
        self,
        errors: dict[int, RtcompileError],
        results: list[Any],
        names: dict[int, str] | None = None,
    ) -> None:
        self.errors = errors
        self.results = results
        self.names = names or {}
        lines = [f"{len(errors)} of {len(results)} builds failed:"]
        for index, error in [*errors.items()][:_ERRORS_SHOWN]:
            first = str(error).partition("\n")[0] or type(error).__name__
            name = f"{self.names[index]}: " if index in self.names else ""
            lines.append(f"[{index}] {name}{first}")
        if len(errors) > _ERRORS_SHOWN:
            lines.append(f"… and {len(errors) - _ERRORS_SHOWN} more in .errors")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errors, self.results, self.names)


def printable(text: str) -> str:
    """Return text that can be printed: a path may hold bytes that are no UTF-8, as lone surrogates."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def shown(value: object) -> str:
    """Return a value as a message shows it: short and printable, whatever it is."""
    kind = type(value).__name__
    if value is None or isinstance(value, bool):
        return str(value)
    if not isinstance(value, (str, bytes, int, float)):
        return kind  # the repr of an array or of a module tells nobody anything
    try:
        said = repr(value)
    except ValueError:  # an int of more than 4,300 digits
        return kind
    if len(said) > _SHOWN:
        said = f"{said[:_SHOWN]}…"
    return said if type(value) is str else f"{kind} {said}"


def adopt_cupy() -> None:
    """Make the compile errors CuPy's too, once CuPy is loaded. Never imports CuPy.

    Rebinding ``__bases__`` keeps one class object for its whole life: the `CompileError` that a
    module imported before CuPy was loaded is the one that is raised after.
    """
    compiler = sys.modules.get("cupy.cuda.compiler")
    if compiler is None or issubclass(CompileError, compiler.CompileException):
        return
    CompileError.__bases__ = (RtcompileError, compiler.CompileException)
    JitifyError.__bases__ = (CompileError, compiler.JitifyException)
