"""Turns a `CompileFailure` into the caller's exception, with a reproducer of a crash."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import rtcompile
from rtcompile import styling
from rtcompile.build import plan as plans
from rtcompile.diagnostic import Diagnostic
from rtcompile.errors import CompileError, CompilerCrashed, CompileTimeout, LinkError
from rtcompile.files import headers
from rtcompile.files.fileset import FileSet
from rtcompile.files.sealed import content_digest
from rtcompile.messages import diagnostics, rendering
from rtcompile.request import cxx
from rtcompile.request.units import CompileFailure, Hints, joined_logs, missing_headers
from rtcompile.settings import Settings
from rtcompile.store.folder import Folder

if TYPE_CHECKING:
    from rtcompile.build.plan import Plan
    from rtcompile.styling import Styled
    from rtcompile.toolkit.model import Toolchain


_LONGEST_COMMAND = 300
ADVICE = {
    "crash": (
        "A crash is the compiler's own fault. Try the other compiler (backend='nvcc' or 'nvrtc') or "
        "another version of it; NVIDIA needs the reproducer to fix it."
    ),
    "memory": (
        "If the code is meant to need that much, raise memory_limit= or RTCOMPILE_MEMORY_LIMIT; "
        "otherwise look for templates or macros that grow exponentially."
    ),
    "timeout": (
        "If the code is meant to take that long, raise timeout= or RTCOMPILE_TIMEOUT; otherwise "
        "look for templates or nested function types that grow exponentially."
    ),
}
_CACHED = (
    "Cached: an earlier build failed like this, and nothing that it read has changed; "
    "recompile=True runs the compiler again."
)
# Patterns are compiled only after a failure, since that takes 0.3 ms.
# Patterns of errors that the source or its options caused.
_DIAGNOSED = (
    r"(?:\(\d+\)|^At end of source): (?:catastrophic )?error"
    r"|^ptxas(?: fatal| error|.*; (?:error|fatal))\s*:"
    r"|^nvrtc: error: (?:unrecognized option|invalid value)"
)
# Patterns of errors that the machine may have caused.
_UNDECIDED = (
    r"No such file or directory|[Oo]ut of memory|[Mm]emory allocation|No space left|[Ii]nternal error"
    r"|Too many open files|[Cc]ould not open (?!source)|library load error|Permission denied|Input/output error"
)
_KINDS: dict[str, type[CompileError]] = {
    "link": LinkError,
    "crash": CompilerCrashed,
    "memory": CompilerCrashed,
    "timeout": CompileTimeout,
}


def as_error(
    failure: CompileFailure, plan: Plan, *, why_nvcc: str = "", cached: bool = False
) -> CompileError:
    """Return the exception for a failed build. `why_nvcc` says why NVCC, if it were installed, could build the code."""
    source, name = plan.request.source, plan.key_inputs.name
    failure = explained(failure, plan)
    parsed = _annotated(failure)
    first: Styled = ()
    before = () if failure.before is None else _annotated(failure.before)
    known = {(each.file, each.line, each.message) for each in parsed}
    errors = [each for each in before if each.severity in ("error", "fatal")]
    if any((each.file, each.line, each.message) not in known for each in errors):
        first = rendering.render(before, source=source, name=name)
        first += (("", "\nNVCC was tried next, and failed too:\n"),)
    advice = [f"NVCC could build it ({why_nvcc}): {plans.lack_of_nvcc(plan)}"] if why_nvcc else []
    advice += [_CACHED] if cached else []
    kind = _KINDS.get(failure.kind, CompileError)
    folder = None
    if issubclass(kind, CompilerCrashed):
        hinted = any(diagnostic.hint for diagnostic in parsed)
        advice += [] if hinted else [ADVICE[failure.kind]]
        if (settings := Settings.from_environ()).cache_on_disk:
            texts, cache = dict(headers.paths(plan.request.headers)), Folder(settings.cache_dir)
            write: Any = rtcompile._load("write_reproducer")
            folder = write(failure, plan, texts, ADVICE[failure.kind], cache)
        advice += [f"Reproducer: {folder}"] if folder is not None else []
    pieces = (*first, *rendering.render(parsed, source=source, name=name))
    pieces += tuple(("", f"\n{paragraph}") for paragraph in advice)
    error = kind(styling.as_text(pieces), source, name, failure.command, failure.backend)
    error.diagnostics, error.advice = parsed, tuple(advice)
    error.log = joined_logs("" if failure.before is None else failure.before.log, failure.log)
    error._rendered, error._first = pieces, first
    if isinstance(error, CompilerCrashed):
        error.reproducer = folder
    error.cached = cached
    return error


def _most_attempts(failure: CompileFailure) -> int:
    """Return how many changed sources may be compiled to find hints: 4 processor seconds' worth, from 1 to 32."""
    own = failure.busy * failure.milliseconds / 1000
    return max(1, min(int(4 / own), 32)) if own > 0 else 1


def explained(
    failure: CompileFailure,
    plan: Plan,
    attempt: Callable[[str, tuple[str, ...]], str | None] | None = None,
) -> CompileFailure:
    """Return a failure with the hints for this toolchain, unless it has them; finding them takes 0.1 s or more.

    `attempt` returns NVRTC's log for a changed source and further options, so that hints can say what a change does.
    """
    before = failure.before and explained(failure.before, plan, attempt)
    facts = _facts(plan.toolchain)
    if failure.hints is not None and failure.hints.facts == facts:
        return failure._replace(before=before)
    from rtcompile.messages import catalogue
    from rtcompile.messages.available import device_functions, missing_header
    from rtcompile.messages.diagnostics import Attempts
    from rtcompile.messages.facts import BuildContext

    parsed, attempts = _parsed(failure), None
    if attempt is not None and failure.backend == "nvrtc" and failure.kind == "error":
        attempts = Attempts(
            attempt, cxx.readable(plan.request.source), parsed, _most_attempts(failure)
        )
    context = BuildContext(
        arch=plan.choice.arch,
        backend=failure.backend,
        options=failure.command,
        versions=plan.toolchain.versions,
        search=plan.search,
        source=cxx.readable(plan.request.source),
        package_of=partial(missing_header, toolchain=plan.toolchain, backend=failure.backend),
        device_names=partial(device_functions, plan.toolchain),
        attempts=attempts,
    )
    found = catalogue.annotate(parsed, context)
    hints = Hints(facts, tuple([(each.hint, each.cause) for each in found]))
    return failure._replace(before=before, hints=hints)


def _facts(toolchain: Toolchain) -> str:
    """Return a digest of the facts about a toolchain that hints may mention and a failure's key does not contain."""
    known = (toolchain.versions, toolchain.found_via, toolchain.missing)
    return content_digest(repr([sorted(each.items()) for each in known]).encode())


def _annotated(failure: CompileFailure) -> tuple[Diagnostic, ...]:
    """Return an explained failure's messages with their hints."""
    parsed, texts = _parsed(failure), () if failure.hints is None else failure.hints.texts
    pairs = zip(parsed, texts, strict=True)
    return tuple([replace(each, hint=hint, cause=cause) for each, (hint, cause) in pairs])


def _parsed(failure: CompileFailure) -> tuple[Diagnostic, ...]:
    """Parse the log; if it has no error, put a description of the failure first."""
    found = diagnostics.parse(failure.log)
    if any(each.is_error or each.severity == "note" for each in found):
        return found
    command = shlex.join(failure.command)
    wrote = "only warnings" if found else "no message"
    text = f"{failure.backend} failed and wrote {wrote} (the command: {command[:_LONGEST_COMMAND]})"
    return (Diagnostic("error", text), *found)


def dependencies_of(failure: CompileFailure) -> FileSet:
    """Return the files that a failure depends on, or why it is not kept."""
    log, files = failure.log, failure.files
    missing = failure.backend == "nvcc" and missing_headers(log)
    is_diagnosed = missing or failure.kind == "link" or re.search(_DIAGNOSED, log, re.MULTILINE)
    if failure.kind not in ("error", "link") or not is_diagnosed or files is None:
        return FileSet(uncacheable="a crash, a limit, or files that are not known")
    if not missing and (undecided := re.search(_UNDECIDED, log)):
        return FileSet(uncacheable=undecided[0])
    return files
