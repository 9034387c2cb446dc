"""Builds what CuPy asks for and the short road of a hit (`cache.answers`) does not have."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import replace

from rtcompile.building import pipeline
from rtcompile.cache import headers
from rtcompile.core.arch import Arch
from rtcompile.core.request import CompileRequest, ObjectCode
from rtcompile.errors import CompileError, RtcompileWarning, ToolkitNotFound
from rtcompile.everywhere import ahead
from rtcompile.settings import Settings

__all__ = ["build", "program_name"]

_KERNEL = re.compile(r"\b__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)")

_missing_toolkit_was_said = False


def build(
    source: str,
    options: Sequence[str],
    capability: str,
    backend: str,
    names: Sequence[str],
    words: Sequence[str],
) -> ObjectCode | None:
    """Return the code for what CuPy's function was given; None where CuPy has to compile it itself.

    Raises
    ------
    CompileError, InvalidRequest, JitDisabled, ToolkitNotFound
    """
    settings = replace(Settings.from_environ(), as_given=True)
    request = _request(source, options, capability, backend, names, settings)
    token = headers.settled_below.set(_own_headers())
    try:
        found = pipeline.look(request, settings, words)
        if isinstance(found, ObjectCode):
            return found
        ahead.begin(request, settings)
        return found.compile()
    except ToolkitNotFound as missing:
        if not settings.jit:  # CuPy would compile it
            raise
        lacking = missing
    except CompileError as error:
        if settings.dump_source_on_error:
            error.dump(sys.stderr)
        raise
    finally:
        headers.settled_below.reset(token)
    _say_once(lacking)
    return None


def _own_headers() -> str:
    from cupy._core import core

    return f"{core._get_header_dir_path()}/"


def _request(
    source: str,
    options: Sequence[str],
    capability: str,
    backend: str,
    names: Sequence[str],
    settings: Settings,
) -> CompileRequest:
    """Return the request that has CuPy's architecture, options and implicit options.

    What CuPy's compiler refuses is refused: programs ask that way what a compiler can do.
    """
    from cupy.cuda import compiler

    flag, method = compiler._get_arch_for_options_for_nvrtc(capability)
    source, options = ahead.with_pass_in_text(source, tuple(options))
    return CompileRequest(
        source,
        options=(*options, "-ftz=true"),
        arch=Arch.parse(flag.partition("=")[2].replace("compute_", "sm_")),
        name_expressions=tuple(names),
        name=program_name(source),
        backend=backend,
        target="ptx" if method == "ptx" or settings.ptx else "cubin",
    )


def program_name(source: str) -> str:
    """Return a name for the program in logs and reports: that of its first kernel."""
    kernel = _KERNEL.search(source)
    return f"{kernel[1]}.cu" if kernel else "cupy.cu"


def _say_once(missing: ToolkitNotFound) -> None:
    global _missing_toolkit_was_said
    if not _missing_toolkit_was_said:
        _missing_toolkit_was_said = True
        warnings.warn(
            f"rtcompile.install(): {missing} Until then CuPy compiles its kernels itself.",
            RtcompileWarning,
            stacklevel=2,
        )
