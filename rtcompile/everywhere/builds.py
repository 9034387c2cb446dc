"""Builds what CuPy asks for and the short road of a hit (`cache.answers`) does not have."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Sequence

from rtcompile.building import pipeline
from rtcompile.cache import words
from rtcompile.core.arch import Arch
from rtcompile.core.request import CompileRequest, ObjectCode
from rtcompile.errors import CompileError, RtcompileWarning, ToolkitNotFound
from rtcompile.everywhere import ahead
from rtcompile.settings import Settings, flag

__all__ = ["build", "program_name", "request_of", "settings_of_cupy"]

_KERNEL = re.compile(r"\b__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)")

_missing_toolkit_was_said = False


def build(said: Sequence[str]) -> ObjectCode | None:
    """Return the code for what CuPy's function was given; None where CuPy has to compile it itself.

    Parameters
    ----------
    said : sequence of str
        What it was given: `rtcompile.cache.words.of_cupy`.

    Raises
    ------
    CompileError, InvalidRequest, JitDisabled, ToolkitNotFound
    """
    settings = settings_of_cupy()
    request = request_of(said, words.CUPY)
    try:
        found = pipeline.look(request, settings, said)
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
    _say_once(lacking)
    return None


def settings_of_cupy() -> Settings:
    """Return the settings: what CuPy's compiler refuses is refused, since programs ask that way."""
    return Settings.from_environ()._replace(as_given=True)


def request_of(said: Sequence[str], capability: tuple[int, int]) -> CompileRequest:
    """Return the request that words stand for, without CuPy or a device.

    Those of CuPy's function have the architecture, options and implicit options that CuPy's compiler
    would be given.
    """
    given = words.read(said, capability)
    if capability != words.CUPY:
        source, name = given.fixed
        return CompileRequest(
            source, options=given.options, name_expressions=given.names, name=name
        )
    source, arch_flag, kind, backend = given.fixed
    source, options = ahead.with_pass_in_text(source, given.options)
    ptx = kind == "ptx" or flag(os.environ, "CUPY_COMPILE_WITH_PTX", False)
    return CompileRequest(
        source,
        options=(*options, "-ftz=true"),
        arch=Arch.parse(arch_flag.partition("=")[2].replace("compute_", "sm_")),
        name_expressions=given.names,
        name=program_name(source),
        backend=backend,
        target="ptx" if ptx else "cubin",
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
