"""Compile with NVRTC, in a worker: a `TranslationUnit` becomes `Compiled` or `CompileFailure`."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rtcompile.core import includes
from rtcompile.core.request import Compiled, CompileFailure, Limits, SearchDir, TranslationUnit
from rtcompile.errors import ToolkitNotFound
from rtcompile.workers import pool

if TYPE_CHECKING:
    from rtcompile.toolkit.model import Library

__all__ = ["compile", "identify"]

# Options that name a place: two machines give the same kernel the same seed.
_PLACES = ("-I", "--include-path", "-include", "--pre-include")


def compile(
    unit: TranslationUnit,
    library: Library,
    *,
    limits: Limits,
    pch: bool,
    cache_dir: str | None,
    search: Sequence[SearchDir],
) -> Compiled | CompileFailure:
    """Compile a unit with the given NVRTC.

    Parameters
    ----------
    unit : TranslationUnit
        What to compile; its flags are NVRTC's own.
    library : Library
        The NVRTC to use.
    limits : Limits
        Seconds and bytes before the compiler is killed.
    pch : bool
        Whether a precompiled header may be used or made.
    cache_dir : str or None
        Where precompiled headers are kept; None: nowhere.
    search : sequence of SearchDir
        The header search path, for the identity of a precompiled header.
    """
    options = (*unit.flags, f"--frandom-seed={_seed(unit)}")
    arguments = {
        "source": unit.source.encode(),
        "name": unit.name.encode(),
        "options": [option.encode() for option in options],
        "expressions": [expression.encode() for expression in unit.name_expressions],
        "target": unit.target,
    }
    outcome = pool.run(_job("compile_unit", arguments, library), limits)
    if isinstance(outcome, pool.Death):
        return _failure(outcome, options, limits)
    return _result(unit, outcome, options)


def identify(library: Library) -> str:
    """Return the compiler's real build, ``"12.9.86 CL-36037853"``, from the PTX that it writes.

    Raises
    ------
    ToolkitNotFound
        The library cannot be loaded or does not work.
    """
    outcome = pool.run(_job("build_string", {}, library), Limits(timeout=60.0))
    if isinstance(outcome, pool.Death):
        reason = _failure(outcome, (), Limits()).log
        raise ToolkitNotFound(f"{library.path} does not work as NVRTC: {reason}")
    return str(outcome.value)


def _job(function: str, arguments: dict[str, Any], library: Library) -> pool.Job:
    module = "rtcompile.workers.nvrtc"
    paths = os.pathsep.join((*library.preload, library.path))
    return pool.Job(f"{module}:{function}", arguments, f"{module}:load", paths)


def _seed(unit: TranslationUnit) -> str:
    """Name what template-only sources would otherwise be given a random name for, per process."""
    digest = hashlib.sha256()
    flags = [flag for flag in unit.flags if not flag.startswith(_PLACES)]
    for part in (unit.source, str(unit.arch), unit.target, *unit.name_expressions, *flags):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:16]


def _result(
    unit: TranslationUnit, answer: pool.Answer, options: tuple[str, ...]
) -> Compiled | CompileFailure:
    reply = answer.value
    milliseconds = {"queue": answer.queued * 1000}
    for phase, begin, end in reply["spans"]:
        milliseconds[phase] = milliseconds.get(phase, 0.0) + (end - begin) * 1000
    if reply["error"]:
        total = sum(milliseconds.values())
        return CompileFailure(reply["error"], reply["log"], options, "nvrtc", milliseconds=total)
    trace = reply["trace"]
    return Compiled(
        code=reply["code"],
        kind=unit.target,
        lowered_names=reply["lowered_names"],
        log=reply["log"],
        trace=() if trace is None else includes.parse_trace(trace),
        milliseconds=milliseconds,
        notes=("NVRTC gave no include trace",) if trace is None else (),
    )


def _failure(death: pool.Death, options: tuple[str, ...], limits: Limits) -> CompileFailure:
    reasons = {
        "crash": f"The compiler died by signal {death.signal}."
        if death.signal
        else "The compiler's process exited without an answer.",
        "timeout": f"The compiler was killed after its time limit of {limits.timeout} s.",
        "memory": f"The compiler was killed beyond its memory limit of {limits.memory} bytes.",
        "start": f"The compiler could not be run: {death.text}",
    }
    return CompileFailure(
        death.kind, reasons[death.kind], options, "nvrtc", signal=death.signal or None
    )
