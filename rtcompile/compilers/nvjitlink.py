"""Links device code with nvJitLink, in a worker, without a GPU or a driver.

nvJitLink crashes on broken inputs, silently omits whole programs, reports success after printing errors on stderr,
and calls other errors "internal". So its inputs are checked first, and a success with an error on
stderr counts as a failure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rtcompile import cubin
from rtcompile.compilers import nvcc
from rtcompile.request.option_table import for_nvjitlink
from rtcompile.request.units import Compiled, CompileFailure, Limits, LinkInput
from rtcompile.request.values import Arch
from rtcompile.workers import pool

if TYPE_CHECKING:
    from rtcompile.request.options import Options
    from rtcompile.toolkit.model import Library, Toolchain

# Formats whose magic bytes do not show whether they contain LTO-IR.
_CONTAINERS = ("fatbin", "object", "archive")
_WANTS_DEVICE_RUNTIME = re.compile(
    r"(?:Undefined reference to|Unresolved extern function) '(?:__)?cuda[A-Z]"
)
_PRINTED_ERROR = re.compile(r"^(?:@E@)?(?:error|fatal)\s*:", re.MULTILINE)
_INPUT_TOO_NEW = re.compile(r"Unsupported \.version|may need newer version of nvJitLink")


def link(  # one linker after another, each with its reasons
    inputs: Sequence[LinkInput],
    arch: Arch,
    options: Options,
    toolchain: Toolchain,
    *,
    limits: Limits,
    target: str = "cubin",
) -> Compiled | CompileFailure:
    """Link inputs to one program, with the device runtime if needed; NVCC links inputs that are too new."""
    linker = toolchain.nvjitlink or toolchain.not_found("nvjitlink")
    # nvJitLink fails on LTO-IR without -lto, and on other inputs with it.
    kinds = {cubin.kind_of(given.data) for given in inputs}
    lto = "ltoir" in kinds or (options.lto and not kinds.isdisjoint(_CONTAINERS))
    flags = for_nvjitlink(options, arch, linker.version_pair, lto=lto, target=target)
    problems = [problem for given in inputs if (problem := _unfit(given, arch))]
    if target == "ptx" and "ltoir" not in kinds:
        problems.append(
            "PTX is linked from LTO-IR only, and no input is LTO-IR; compile with -dlto"
        )
    if problems:
        return _refusal(problems, flags)
    inputs = [given._replace(kind=cubin.kind_of(given.data) or given.kind) for given in inputs]
    outcome: Compiled | CompileFailure
    newer = [given.name for given in inputs if _from_newer_toolkit(given, linker.version_pair)]
    if newer:
        problem = (
            f"{', '.join(newer)}: from a newer toolkit than nvJitLink {linker.version}; install "
            "that toolkit's nvJitLink"
        )
        outcome = _refusal([problem], flags)
    else:
        outcome = _link(linker, inputs, arch, flags, limits, target)
        if isinstance(outcome, CompileFailure) and _WANTS_DEVICE_RUNTIME.search(outcome.log):
            # It is added only if needed, since it adds 200 KB to a program.
            path = toolchain.cudadevrt or toolchain.not_found("cudadevrt")
            with open(path, "rb") as file:
                inputs.append(LinkInput("archive", os.path.basename(path), file.read()))
            outcome = _link(linker, inputs, arch, flags, limits, target)
        if isinstance(outcome, Compiled) or not _INPUT_TOO_NEW.search(outcome.log):
            return outcome
    # For LTO-IR, NVCC's linker needs the nvJitLink of its own version, which is not installed.
    other = toolchain.nvcc
    if "ltoir" in kinds or other is None or other.version_pair <= linker.version_pair:
        return outcome
    return nvcc.link(inputs, arch, toolchain, limits=limits)


def _link(
    linker: Library,
    inputs: Sequence[LinkInput],
    arch: Arch,
    flags: Sequence[str],
    limits: Limits,
    target: str,
) -> Compiled | CompileFailure:
    command = ("nvJitLink", *flags, *(given.name for given in inputs))
    job: dict[str, Any] = {
        "inputs": [(given.kind, given.name, given.data) for given in inputs],
        "options": list(flags),
        "target": target,
    }
    outcome = pool.run(pool.Job("rtcompile.workers.libraries:link", job, linker.path), limits)
    if isinstance(outcome, pool.Crash):
        # A name can be any text, so a reproducer's files are numbered.
        files = {f"{at}.{given.kind}": given.data for at, given in enumerate(inputs)}
        return pool.failure(outcome, command, "nvjitlink", limits)._replace(inputs=files)
    reply = outcome.value
    log = reply["printed"] + reply["log"]
    milliseconds = {"queue": outcome.queued * 1e3, "link": reply["seconds"] * 1e3}
    if reply["error"] or _PRINTED_ERROR.search(reply["printed"]):
        at = reply["input"]
        reason = "" if at is None else _misfit(inputs[at], arch, log)
        log = (f"error   : {reason}\n" if reason else "") + (log or f"error   : {reply['error']}\n")
        total = sum(milliseconds.values())
        return CompileFailure("link", log, command, "nvjitlink", milliseconds=total)
    return Compiled(reply["code"], target, {}, log, (), milliseconds)


def _refusal(problems: Sequence[str], flags: Sequence[str]) -> CompileFailure:
    log = "".join(f"error   : {problem}\n" for problem in problems)
    return CompileFailure("link", log, ("nvJitLink", *flags), "nvjitlink")


# --- Why an input cannot be linked ----------------------------------------------------------------

_ET_EXEC = 2
_PTX_TARGET = re.compile(rb"^\s*\.target\s+(\w+)", re.MULTILINE)

_NOUNS = {
    "cubin": "a cubin",
    "object": "a host object",
    "fatbin": "a fatbin",
    "ltoir": "LTO-IR",
    "archive": "an archive",
    "ptx": "PTX",
}


def _unfit(given: LinkInput, arch: Arch) -> str:
    """Return why an input would make the linker crash or would be dropped silently; "" if it is safe."""
    kind = cubin.kind_of(given.data)
    if kind is None:
        begins = f"begins with {given.data[:8]!r}" if given.data else "is empty"
        return f"'{given.name}' {begins}: no cubin, PTX, LTO-IR, fatbin, object or archive"
    # rtcompile's kind "object" includes relocatable machine code, which the linker calls a cubin.
    if kind != given.kind and (given.kind, kind) != ("object", "cubin"):
        return f"'{given.name}' was given as {_noun(given.kind)}, but it is {_noun(kind)}"
    if kind != "cubin":
        return ""
    try:
        own = cubin.Elf(given.data).arch()
    except ValueError as error:
        return f"'{given.name}': {error}"
    if int.from_bytes(given.data[16:18], "little") == _ET_EXEC:
        return (
            f"'{given.name}' is fully linked, and a linker ignores it; compile it "
            "with -rdc=true (or -dlto)"
        )
    if own != arch and (own.suffix or (own.major, own.minor) > (arch.major, arch.minor)):
        return f"'{given.name}' is machine code for {own}; this link is for {arch}"
    return ""


def _misfit(given: LinkInput, arch: Arch, log: str) -> str:
    """Return the problem of an input that the linker rejected with this log; "" if unknown."""
    kind = cubin.kind_of(given.data)
    name = f"'{given.name}'"
    if kind == "cubin":
        own = cubin.Elf(given.data).arch()
        return f"{name} is machine code for {own}; this link is for {arch}" if own != arch else ""
    if kind == "ptx":
        version = cubin.PTX.match(given.data)
        target = _PTX_TARGET.search(given.data)
        found = f"{name} is PTX {version[1].decode() if version else ''}"
        if "Unsupported .version" in log:
            return (
                f"{found}, from a newer toolkit than the linker; install that toolkit's nvJitLink"
            )
        return f"{found} for {target[1].decode()}; this link is for {arch}" if target else ""
    if kind == "ltoir" and "may need newer version" in log:
        return f"{name} is LTO-IR from a newer toolkit; install that toolkit's nvJitLink"
    if kind == "ltoir" and "arch newer than target" in log:
        return f"{name} is LTO-IR for a newer architecture than {arch}"
    if kind in ("fatbin", "object", "archive") and "bad input" in log:
        return f"{name}, {_noun(kind)}, contains no code for {arch}"
    return ""


def _from_newer_toolkit(given: LinkInput, linker: tuple[int, int]) -> bool:
    """Return whether machine code is from a newer toolkit than the linker, which may then drop sections of it."""
    # Undocumented: the ABI version in a device ELF is 7 from CUDA 12 and 8 from CUDA 13.
    known = {12: 7, 13: 8}.get(linker[0])
    return known is not None and cubin.kind_of(given.data) == "cubin" and given.data[8] > known


def _noun(kind: str) -> str:
    return _NOUNS.get(kind, repr(kind))
