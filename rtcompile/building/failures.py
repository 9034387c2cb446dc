"""Turns a `CompileFailure` into the error that the caller sees."""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING

from rtcompile.building import reproducer as repro
from rtcompile.cache.folder import Folder
from rtcompile.core import memory_headers
from rtcompile.core.units import CompileFailure
from rtcompile.errors import (
    CompileError,
    CompilerCrashed,
    CompileTimeout,
    LinkError,
)
from rtcompile.messages import diagnostics, hints, rendering
from rtcompile.messages.diagnostics import Diagnostic
from rtcompile.messages.facts import BuildContext
from rtcompile.settings import Settings
from rtcompile.toolkit.packages import missing_header

if TYPE_CHECKING:
    from rtcompile.building.plan import Plan

_LONGEST_COMMAND = 300
_CACHED = (
    "Cached: an earlier build failed like this, and nothing that it read has changed; "
    "recompile=True asks the compiler again."
)
_KINDS: dict[str, type[CompileError]] = {
    "link": LinkError,
    "crash": CompilerCrashed,
    "memory": CompilerCrashed,
    "timeout": CompileTimeout,
}


def as_error(
    failure: CompileFailure, plan: Plan, *, then: str = "", cached: bool = False
) -> CompileError:
    """Return the error for a failed build.

    `then` says what else was tried, and with what result; `cached` whether no compiler was asked.
    """
    request = plan.request
    name = plan.question.name
    context = BuildContext(
        arch=plan.choice.arch,
        target=plan.choice.target,
        backend=failure.backend,
        options=failure.command,
        versions=plan.toolchain.versions,
        search=plan.search,
        source=request.source,
        package_of=partial(missing_header, toolchain=plan.toolchain, backend=failure.backend),
    )
    parsed = hints.annotate(_parsed(failure), context)
    advice = [each for each in (then, _CACHED if cached else "") if each]
    kind = _KINDS.get(failure.kind, CompileError)
    folder = _reproducer(failure, plan) if issubclass(kind, CompilerCrashed) else None
    if folder is not None:
        hinted = any(diagnostic.hint for diagnostic in parsed)
        advice += [] if hinted else [repro.advice(failure)]
        advice += [f"Reproducer: {folder}"]
    error: CompileError = kind.told(
        rendering.story(parsed, source=request.source, name=name),
        request.source,
        name,
        failure.command,
        failure.backend,
        diagnostics=parsed,
        log=failure.log,
        advice=tuple(advice),
    )
    if isinstance(error, CompilerCrashed):
        error.reproducer = folder
    error.cached = cached
    return error


def _parsed(failure: CompileFailure) -> tuple[Diagnostic, ...]:
    """Parse the log; if it has no error, put one first that says what happened."""
    found = diagnostics.parse(failure.log)
    if any(each.is_error or each.severity == "note" for each in found):
        return found
    command = shlex.join(failure.command)
    wrote = "only warnings" if found else "no message"
    said = f"{failure.backend} failed and wrote {wrote} (the command: {command[:_LONGEST_COMMAND]})"
    return (Diagnostic("error", said), *found)


def _reproducer(failure: CompileFailure, plan: Plan) -> str | None:
    settings = Settings.from_environ()
    if not settings.cache_on_disk:
        return None
    toolchain = plan.toolchain
    compiler = toolchain.nvrtc if failure.backend == "nvrtc" else toolchain.nvcc
    return repro.write(
        failure,
        source=plan.request.source,
        name=plan.question.name,
        name_expressions=plan.request.name_expressions,
        compiler=compiler.path if compiler is not None else failure.backend,
        search=plan.search,
        versions=toolchain.versions,
        folder=Folder(settings.cache_dir),
        memory=dict(memory_headers.paths(plan.request.headers)),
    )
