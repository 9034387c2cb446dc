"""Lets rtcompile compile what `cuda.core.Program.compile` compiles: `rtcompile.install("cuda.core")`.

`Program` is an immutable extension type, so a subclass takes its place in cuda.core's modules. Names that a program
imported before keep the original class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

import cuda.core

from rtcompile import RtcompileError
from rtcompile.extras.cuda_core import ProgramCache

_Theirs: Any = cuda.core.Program
_KNOWN = ("1.0", "1.1", "1.2")  # releases whose `Program` was compared with the subclass


class Program(_Theirs):  # type: ignore[misc]
    """A `cuda.core.Program` whose C++ is compiled by rtcompile, and found in its cache."""

    def __init__(self, code: Any, code_type: str, options: Any = None) -> None:
        super().__init__(code, code_type, options)
        self._given = code, code_type, options

    def compile(
        self,
        target_type: str,
        name_expressions: Sequence[str | bytes] = (),
        logs: Any = None,
        *,
        cache: Any = None,
    ) -> Any:
        """Compile the program to PTX, a cubin or LTO-IR, as `cuda.core.Program.compile` does."""
        code, code_type, options = self._given
        if cache is None and str(code_type).lower() == "c++":
            if not isinstance(options, cuda.core.ProgramOptions):
                options = cuda.core.ProgramOptions(**(options or {}))
            # cuda.core compiles what rtcompile rejects or cannot cache, so users get cuda.core's errors.
            with suppress(RtcompileError, ValueError, TypeError):
                return ProgramCache().compile(
                    code, code_type, options, target_type, name_expressions, logs
                )
        try:
            return super().compile(target_type, name_expressions, logs, cache=cache)
        except Exception as error:  # noqa: BLE001  # raised again below
            failure = error.with_traceback(None)
        # cuda.core 1.2 cannot free a `Program` in a reference cycle, such as that of a traceback with this frame.
        del self
        raise failure


def _modules(current: Any) -> Iterator[ModuleType]:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "cuda" and vars(module).get("Program") is current:
            yield module


def install() -> str | None:
    """Replace `Program`; return why that is impossible, ``""`` if it is done, None if it was done before."""
    if cuda.core.Program is Program:
        return None
    version = cuda.core.__version__
    if not version.startswith(tuple(f"{known}." for known in _KNOWN)):
        return (
            f"cuda.core {version} is not known; rtcompile is tested with {', '.join(_KNOWN)}. "
            "cuda.core compiles its programs itself, as before. Install one of these, or a newer rtcompile."
        )
    for module in _modules(_Theirs):
        module.Program = Program  # type: ignore[attr-defined]
    return ""


def uninstall() -> None:
    """Restore cuda.core's `Program`."""
    for module in _modules(Program):
        if module.__name__ != __name__:
            module.Program = _Theirs  # type: ignore[attr-defined]
