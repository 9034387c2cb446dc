"""Compiles a `TranslationUnit` with NVRTC, in a worker."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rtcompile.compilers import observed
from rtcompile.errors import ToolkitNotFound
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import FOLDER, IN_JOB, SearchDir, parse_trace
from rtcompile.files.sealed import content_digest
from rtcompile.request import cxx
from rtcompile.request.key import digest, field, fields
from rtcompile.request.units import Compiled, CompileFailure, Limits, TranslationUnit
from rtcompile.workers import pool

if TYPE_CHECKING:
    from rtcompile.compilers.pch import Prefix, PrefixRecord
    from rtcompile.toolkit.model import Library

# The first NVRTC with an option for the names of internal symbols; older ones use the process id.
_FIRST_WITH_SEED = (12, 9)
FIRST_WITH_PCH = (12, 8)
# Options with a path. The seed leaves them out, so it is equal on all machines.
_PATH_OPTIONS = ("-I", "--include-path", "-include", "--pre-include")

# Options without an effect on the next compile in the same process, as measured: its code and log are those of a
# new process. In contrast, `--restrict` and `--optimization-info` stay in effect, and after `--device-debug` a
# `__grid_constant__` parameter is read in another way. For others, such as options for ptxas, it is unknown.
_FORGOTTEN = frozenset(
    (
        *("gpu-architecture", "arch", "std", "device-as-default-execution-space", "default-device"),
        *("device-int128", "ftz", "fmad", "prec-div", "prec-sqrt", "use_fast_math"),
        *("maxrregcount", "generate-line-info", "pre-include"),
        *("disable-warnings", "diag-suppress", "diag-error", "diag-warn"),
        "relocatable-device-code",
    )
)
# Prefixes of the names that `--minimal` leaves undeclared: textures and surfaces, the runtime's and the driver's
# types, functions and macros, launches from kernels. A `##` may assemble a name.
_UNDECLARED = re.compile(
    r"<<<|##|%:%:|\?\?|(?<![A-Za-z0-9])(?:cuda|cu[A-Z_]|tex|surf|TEX|SURF|nv|NV(?!IDIA\b)"
    r"|CU(?!DA_ARCH__|DACC__|DACC_RTC__)|MAJOR_VERSION|MINOR_VERSION|PATCH_LEVEL)"
)
# Options that put more than instructions into the code, or make no machine code.
_OTHER_OUTPUT_OPTIONS = (
    *("G", "device-debug", "lineinfo", "generate-line-info", "dc", "device-c", "rdc"),
    *("relocatable", "dlto", "minimal", "builtin", "no-source", "split", "ofast"),
)
# The first NVRTC whose code with and without `--minimal` was compared, byte by byte.
_FIRST_COMPARED = (12, 9)


def compile(
    unit: TranslationUnit,
    library: Library,
    *,
    limits: Limits,
    cache_dir: str | None = None,
    search: Sequence[SearchDir] = (),
    meanwhile: Callable[[], object] | None = None,
) -> Compiled | CompileFailure:
    """Compile a unit, with a precompiled header in `cache_dir` if that is given; each run calls `meanwhile`."""
    prefix = prefix_of(unit, library, cache_dir, limits, search) if cache_dir else None
    if prefix is None:
        return _run(unit, library, limits, search, meanwhile)[0]

    with prefix.wanted(limits.timeout):
        outcome, header = _run(unit, library, limits, search, meanwhile, prefix)
        if not _trust_result(outcome, unit, header):
            outcome, _ = _run(unit, library, limits, search, meanwhile)
            if isinstance(outcome, Compiled):
                prefix.blame()  # a build that failed with it succeeded without it
        elif header is None:
            prefix.built(outcome, _front_end(outcome, unit) / 1000)
        return outcome


def observe(
    unit: TranslationUnit, library: Library, limits: Limits, **more: Any
) -> dict[str, Any] | CompileFailure:
    """Compile a unit with its own options only, and return the worker's reply."""
    arguments = {**observed.job_fields(unit, unit.flags), **more}
    result = pool.run(job_of(library, arguments), limits)
    if isinstance(result, pool.Crash):
        return _death(result, library, unit.flags, limits)
    reply: dict[str, Any] = result.value
    return reply


def prefix_of(
    unit: TranslationUnit,
    library: Library,
    cache_dir: str,
    limits: Limits,
    search: Sequence[SearchDir],
) -> Prefix | None:
    """Return the leading includes of a unit, for which there may be a precompiled header; None without any."""
    if library.version_pair < FIRST_WITH_PCH:
        return None
    text, _ = cxx.split_prefix(unit.source)
    if not text:
        return None
    from rtcompile.compilers.pch import Prefix  # takes 1 ms, which sources without headers avoid

    alone = unit._replace(source=text, name_expressions=())

    def make(path: str, timeout: float, aside: bool) -> tuple[Compiled | CompileFailure, float]:
        given = limits._replace(timeout=timeout)
        outcome, _ = _run(alone, library, given, search, create=path, aside=aside)
        if not aside and isinstance(outcome, Compiled):
            limits.after_waiting(outcome.milliseconds["queue"] / 1000)
        return outcome, _front_end(outcome, alone) / 1000

    return Prefix(alone, library, cache_dir, make)


def _run(
    unit: TranslationUnit,
    library: Library,
    limits: Limits,
    search: Sequence[SearchDir],
    meanwhile: Callable[[], object] | None = None,
    prefix: Prefix | None = None,
    *,
    create: str = "",
    aside: bool = False,
) -> tuple[Compiled | CompileFailure, PrefixRecord | None]:
    """Compile once with the precompiled header of a prefix, or create one; return the outcome and the header."""
    options = unit.flags + _own_options(unit, library)
    reusable = is_forgotten(unit.flags) and not create
    minimal = library.version_pair >= _FIRST_COMPARED and needs_no_declarations(
        unit.source, unit.flags, unit.target
    )
    header: PrefixRecord | None = None

    def job() -> pool.Job:
        # Look for the header now, since it may have been made while the job was queued.
        nonlocal header
        header = prefix.find() if prefix else None
        arguments = {
            **observed.job_fields(unit, options, search),
            "minimal": minimal,
            "reusable": reusable,
            "pch": os.fsencode(prefix.path) if prefix and header else b"",
            "create_pch": os.fsencode(create),
            "yields": aside,
        }
        return job_of(library, arguments, reusable=reusable)

    # A job `aside`, on an idle core, takes no slot and yields to all other processes.
    result = pool.shared().run_beside(job(), limits) if aside else pool.run(job, limits, meanwhile)
    if isinstance(result, pool.Crash):
        return _death(result, library, options, limits, header), header
    if result.value["pch"] is None:
        header = None
    return _outcome(unit, result, options, header, search), header


def needs_no_declarations(source: str, options: tuple[str, ...], target: str) -> bool:
    """Return whether ``--minimal`` changes no code, and saves a fifth of a small kernel's time."""
    # `reads_no_file` returns False for a long text.
    if target != "cubin" or _need_declarations(options) or not cxx.reads_no_file(source, options):
        return False
    return _UNDECLARED.search(cxx.Text(source).text) is None


@functools.lru_cache(maxsize=16)
def _need_declarations(options: tuple[str, ...]) -> bool:
    texts = [option[2:] for option in options if option[1:2] in "D-"]
    is_other = any(option.lstrip("-").startswith(_OTHER_OUTPUT_OPTIONS) for option in options)
    return is_other or _UNDECLARED.search("\n".join(texts)) is not None


@functools.lru_cache(maxsize=16)
def is_forgotten(options: tuple[str, ...]) -> bool:
    """Return whether no option affects NVRTC's next compile in the same process."""
    return all(
        option.startswith(("-D", "-U", "-I")) or option.lstrip("-").partition("=")[0] in _FORGOTTEN
        for option in options
    )


def job_of(library: Library, arguments: dict[str, Any], *, reusable: bool = False) -> pool.Job:
    """Return the job that compiles a unit in a worker with this library."""
    function = "rtcompile.workers.libraries:compile_unit"
    return pool.Job(function, arguments, library.to_load(), reusable)


def _own_options(unit: TranslationUnit, library: Library) -> tuple[str, ...]:
    """Return the option with the seed of internal names, which would otherwise differ in each process."""
    if library.version_pair < _FIRST_WITH_SEED:
        return ()
    found = [
        field("source", content_digest(unit.source.encode())),
        field("arch", str(unit.arch)),
        field("target", unit.target),
        *fields("name expression", unit.name_expressions),
        *fields("flag", [flag for flag in unit.flags if not flag.startswith(_PATH_OPTIONS)]),
    ]
    return (f"--frandom-seed={digest(found)[:16]}",)


def _outcome(
    unit: TranslationUnit,
    result: pool.JobResult,
    options: tuple[str, ...],
    header: PrefixRecord | None,
    search: Sequence[SearchDir],
) -> Compiled | CompileFailure:
    reply = result.value
    # Both are of the headers that were read, in the order of their first inclusion; None if unknown.
    files = trace = None
    if reply["observed"] is not None:
        # The compiler reports only the headers that it read itself, not those in the precompiled header.
        known = header.dependencies if header is not None else FileSet()
        files = observed.file_set(reply["observed"], search, before=known)
        trace = tuple([each.path for each in files.headers])
    elif reply["trace"] is not None:
        paths = parse_trace(reply["trace"])
        trace = tuple([path for path in paths if not path.startswith(IN_JOB)])
    milliseconds = {**reply["milliseconds"], "queue": result.queued * 1e3}
    log = reply["log"].replace(IN_JOB, FOLDER)
    before = header.trace if header is not None and reply["pch"] else ()
    if reply["error"]:
        return CompileFailure(
            reply["error"],
            log,
            options,
            "nvrtc",
            milliseconds=sum(milliseconds.values()),
            trace=trace,
            files=files,
            busy=reply["busy"],
        )
    return Compiled(
        code=reply["code"],
        kind=unit.target,
        lowered_names=reply["lowered_names"],
        log=log,
        trace=trace,
        milliseconds=milliseconds,
        notes=(f"{len(before)} headers came precompiled",) if before else (),
        files=files,
        busy=reply["busy"],
    )


def _front_end(outcome: Compiled | CompileFailure, unit: TranslationUnit) -> float:
    """Return the front end's processor milliseconds; 0 if it did not reach the user's own text."""
    if isinstance(outcome, Compiled):
        return outcome.busy * outcome.milliseconds.get("front end", 0.0)
    return outcome.busy * outcome.milliseconds if _is_own_mistake(outcome, unit) else 0.0


def _trust_result(
    outcome: Compiled | CompileFailure, unit: TranslationUnit, header: PrefixRecord | None
) -> bool:
    """Return False if a precompiled header was not used after all, or may have caused the failure."""
    if header is None:
        return True
    if isinstance(outcome, Compiled):
        return bool(outcome.notes)
    if outcome.kind in ("timeout", "start", "memory"):
        return True
    return _is_own_mistake(outcome, unit)


def _is_own_mistake(outcome: CompileFailure, unit: TranslationUnit) -> bool:
    first = re.search(r"^(.*)\(\d+\): (?:catastrophic )?error", outcome.log, re.MULTILINE)
    return first is not None and first[1] == unit.name


def _death(
    death: pool.Crash,
    library: Library,
    options: tuple[str, ...],
    limits: Limits,
    header: PrefixRecord | None = None,
) -> CompileFailure:
    """Return the failure, with NVRTC's stderr: the headers it read, and its last message."""
    if death.kind == "load":
        raise ToolkitNotFound(f"{library.path} does not work as NVRTC: {death.text}")
    failure = pool.failure(death, options, "nvrtc", limits)
    lines = death.stderr.splitlines(keepends=True)
    read = [line for line in lines if line.lstrip(b" ").startswith((b"/", b"__nv_"))]
    words = b"".join(line for line in lines if line not in read).decode("utf-8", "replace")
    before = header.trace if header is not None else ()
    trace = tuple(dict.fromkeys((*before, *parse_trace(b"".join(read)))))
    return failure._replace(log=f"{failure.log}\n{words}".rstrip(), trace=trace)
