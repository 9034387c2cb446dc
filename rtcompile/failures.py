"""A `CompileFailure` becomes the error that the caller sees."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rtcompile import repro
from rtcompile.core.units import CompileFailure
from rtcompile.errors import (
    CompileError,
    CompilerCrashed,
    CompileTimeout,
    LinkError,
    adopt_cupy,
)
from rtcompile.messages import diagnostics, hints, rendering
from rtcompile.messages.context import BuildContext
from rtcompile.settings import Settings
from rtcompile.toolkit.packages import missing_header

if TYPE_CHECKING:
    from rtcompile.pipeline import Plan

__all__ = ["as_error"]

_KINDS: dict[str, type[CompileError]] = {
    "link": LinkError,
    "crash": CompilerCrashed,
    "memory": CompilerCrashed,
    "timeout": CompileTimeout,
}


def as_error(failure: CompileFailure, plan: Plan, *, then: str = "") -> CompileError:
    """Return the error for a failed build; `then` is what else was tried, and how it ended."""
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
        package_of=missing_header,
    )
    parsed = hints.annotate(diagnostics.parse(failure.log), context)
    message = rendering.render(parsed, source=request.source, name=name) or failure.log
    if then:
        message = f"{message}\n{then}"
    kind = _KINDS.get(failure.kind, CompileError)
    folder = _reproducer(failure, plan) if issubclass(kind, CompilerCrashed) else None
    if folder is not None:
        message = f"{message}\n{repro.advice(failure)}\nReproducer: {folder}"
    adopt_cupy()
    error = kind(
        message,
        request.source,
        name,
        failure.command,
        failure.backend,
        diagnostics=parsed,
        log=failure.log,
    )
    error.html = rendering.html(parsed, source=request.source, name=name)
    if isinstance(error, CompilerCrashed):
        error.reproducer = folder
    return error


def _reproducer(failure: CompileFailure, plan: Plan) -> str | None:
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
        folder=os.path.join(Settings.from_environ().cache_dir, "reproducers"),
    )
