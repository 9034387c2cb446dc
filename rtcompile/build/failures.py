"""Turns a `CompileFailure` into the caller's exception, and writes a reproducer of a crash."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rtcompile._version import __version__
from rtcompile.build import plan as plans
from rtcompile.diagnostic import Diagnostic
from rtcompile.errors import CompileError, CompilerCrashed, CompileTimeout, LinkError
from rtcompile.files import headers, sealed
from rtcompile.files.sealed import content_digest
from rtcompile.messages import diagnostics, rendering
from rtcompile.request import cxx
from rtcompile.request.units import CompileFailure, Hints, joined_logs
from rtcompile.settings import Settings
from rtcompile.store.folder import Folder

if TYPE_CHECKING:
    from rtcompile.build.plan import Plan
    from rtcompile.styling import Styled
    from rtcompile.toolkit.model import Toolchain


# --- Writes a reproducer of a compiler's crash ----------------------------------------------------

_MOST_FOLDERS = 20
# Of the compiler's input: writing a longer one would exceed a caller's time limit.
_MOST_BYTES = 16 << 20
# The compilers that are libraries: a program that calls them is beside this file.
_LIBRARIES = ("nvrtc", "nvjitlink")
_OUR_NAMES = ("report.json", "README.txt", "run.sh", "reproduce.py", "include")

_ADVICE = {
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


def write(failure: CompileFailure, plan: Plan, folder: Folder) -> str | None:
    """Write a self-contained reproducer, remove the oldest, and return its path; None if it is not possible."""
    request, toolchain = plan.request, plan.toolchain
    if max(len(request.source), *map(len, failure.inputs.values()), 0) > _MOST_BYTES:
        return None
    expressions = request.name_expressions
    memory = dict(headers.paths(request.headers))
    words = (request.source_digest, *failure.command, *expressions)
    key = content_digest("\0".join(words).encode("utf-8", "surrogateescape"))
    home = f"{failure.backend}-{failure.kind}-{key[:12]}"
    # NVCC's command includes the compiler and the input, nvJitLink's all inputs.
    options = failure.command if failure.backend == "nvrtc" else failure.command[1:]
    compiler = getattr(toolchain, failure.backend)
    program = _program(plan.key_inputs.name)
    # NVCC gets other text than the request's: with a name, and with markers of name expressions. nvJitLink
    # gets code.
    inputs = failure.inputs or {program: request.source.encode("utf-8", "surrogateescape")}
    program = next(iter(inputs))
    read = {*(failure.trace or ()), *memory}
    # Original folders and files to their copies in the reproducer, the longest first.
    before = dict.fromkeys([*(each.path.rstrip("/") for each in plan.search), *read])
    copies = [
        (path, "include" + os.path.normpath("/" + path.lstrip("/")))
        for path in sorted(filter(None, before), key=len, reverse=True)
    ]
    report: dict[str, Any] = {
        "what": failure.log.splitlines()[0] if failure.log else failure.kind,
        "kind": failure.kind,
        "signal": failure.signal,
        "compiler": compiler.path if compiler is not None else failure.backend,
        "program": program,
        "options": [_moved(option, copies) for option in options],
        "inputs": list(inputs),
        "name_expressions": list(expressions),
        "versions": dict(toolchain.versions),
        "rtcompile": __version__,
        "system": platform.platform(),
    }
    texts = {
        "report.json": json.dumps(report, indent=2) + "\n",
        "README.txt": _readme(failure, report),
        "run.sh": _script(report, calls_library=failure.backend in _LIBRARIES),
    }
    try:
        if failure.backend in _LIBRARIES:
            script = os.path.join(os.path.dirname(__file__), f"reproduce_{failure.backend}.txt")
            with open(script, encoding="utf-8") as file:
                texts["reproduce.py"] = file.read()
        folder.prepare()
        with folder.open("reproducers") as reproducers:
            # By descriptor, since other users may be able to replace the cache directory.
            with _new_folder(home, f"/proc/self/fd/{reproducers}") as top:
                for path, target in copies:
                    with suppress(OSError):  # it was removed, or another path has the same name
                        if path in memory:
                            _write(f"{top}/{target}", memory[path].encode())
                        elif path in read:
                            _write(f"{top}/{target}", sealed.read_given(path))
                        else:
                            os.makedirs(f"{top}/{target}", exist_ok=True)
                for file_name, data in inputs.items():
                    _write(f"{top}/{file_name}", data)
                for file_name, text in texts.items():
                    _write(f"{top}/{file_name}", text.encode("utf-8", "surrogateescape"))
                os.chmod(f"{top}/run.sh", 0o700)
            others = [found for found in folder.listing("reproducers") if found[0] != home]
            others.sort(key=lambda found: -found[1].st_mtime)
            for name, _ in others[_MOST_FOLDERS - 1 :]:
                _remove(f"/proc/self/fd/{reproducers}/{name}")
    except (OSError, UnicodeEncodeError):
        return None
    return folder.file("reproducers", home)


def _program(name: str) -> str:
    """Return the source's file name: the program's own, if it is a plain file name."""
    base = os.path.basename(name)
    plain = re.fullmatch(r"\w[\w.+-]{0,99}", base, re.ASCII)
    return base if plain and base not in _OUR_NAMES else "kernel.cu"


@contextmanager
def _new_folder(name: str, parent: str) -> Iterator[str]:
    """Yield a new folder, and rename it at the end, after removing an older one of the same name."""
    new = f"{parent}/.{name}-{os.getpid()}"
    os.mkdir(new, 0o700)
    try:
        yield new
        _remove(f"{parent}/{name}")
        os.rename(new, f"{parent}/{name}")
    finally:
        _remove(new)


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "xb") as file:
        file.write(data)


def _remove(path: str) -> None:
    sealed.discard(path)  # if it is a link, it is removed and not followed
    shutil.rmtree(path, ignore_errors=True)


def _script(report: Mapping[str, Any], *, calls_library: bool) -> str:
    """Return the shell script, with every word of the report quoted."""
    words = " ".join(shlex.quote(word) for word in report["options"])
    command = 'python3 reproduce.py "$compiler"' if calls_library else f'"$compiler" {words}'
    return (
        '#!/bin/sh\ncd "$(dirname "$0")" || exit\n'
        f"compiler={shlex.quote(report['compiler'])}\n[ $# = 0 ] || compiler=$1\nexec {command}\n"
    )


def _moved(option: str, copies: Sequence[tuple[str, str]]) -> str:
    """Return an option with a folder in it replaced by its copy."""
    for before, after in copies:
        if option.endswith(before):
            return option.removesuffix(before) + after
    return option


def _readme(failure: CompileFailure, report: Mapping[str, Any]) -> str:
    versions = {**report["versions"], "rtcompile": __version__, "system": report["system"]}
    lines = "".join(f"  {name} {version}\n" for name, version in sorted(versions.items()))
    return (
        f"{failure.log}\n\n{_ADVICE.get(failure.kind, '')}\n\n"
        f"./run.sh compiles {' '.join(report['inputs'])} as rtcompile did, with the headers in include/;\n"
        f"./run.sh PATH does so with another {os.path.basename(report['compiler'])}.\n\n"
        f"{lines}"
    )


# --- Turns a `CompileFailure` into the error that the caller sees ---------------------------------

_LONGEST_COMMAND = 300
_CACHED = (
    "Cached: an earlier build failed like this, and nothing that it read has changed; "
    "recompile=True runs the compiler again."
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
    """Return the exception for a failed build, which NVCC could build for the reason `why_nvcc` if it were there."""
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
        advice += [] if hinted else [_ADVICE[failure.kind]]
        if (settings := Settings.from_environ()).cache_on_disk:
            folder = write(failure, plan, Folder(settings.cache_dir))
        advice += [f"Reproducer: {folder}"] if folder is not None else []
    error: CompileError = kind.rendered(
        (*first, *rendering.render(parsed, source=source, name=name)),
        source,
        name,
        failure.command,
        failure.backend,
        diagnostics=parsed,
        log=joined_logs("" if failure.before is None else failure.before.log, failure.log),
        advice=tuple(advice),
    )
    error._first = first
    if isinstance(error, CompilerCrashed):
        error.reproducer = folder
    error.cached = cached
    return error


def _most_attempts(failure: CompileFailure) -> int:
    """Return how many changes of a source may be compiled: less than 4 seconds of a processor, but one at least."""
    own = failure.busy * failure.milliseconds / 1000
    return max(1, min(int(4 / own), 32)) if own > 0 else 1


def explained(
    failure: CompileFailure,
    plan: Plan,
    attempt: Callable[[str, tuple[str, ...]], str | None] | None = None,
) -> CompileFailure:
    """Return a failure with hints, unless it has this toolchain's; finding them takes a process 0.1 s and more.

    `attempt` returns NVRTC's log for a changed source with further options: hints name changes that were compiled.
    """
    before = failure.before and explained(failure.before, plan, attempt)
    facts = _facts(plan.toolchain)
    if failure.hints is not None and failure.hints.facts == facts:
        return failure._replace(before=before)
    from rtcompile.messages import catalogue
    from rtcompile.messages.available import device_functions, missing_header
    from rtcompile.messages.facts import BuildContext
    from rtcompile.messages.tried import Attempts

    parsed, attempts = _parsed(failure), None
    if attempt is not None and failure.backend == "nvrtc" and failure.kind == "error":
        attempts = Attempts(
            attempt,
            cxx.readable(plan.request.source),
            parsed,
            _most_attempts(failure),
        )
    context = BuildContext(
        arch=plan.choice.arch,
        target=plan.choice.target,
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
    """Return a digest of what a hint may say about the toolchain, and a failure's key does not contain."""
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
