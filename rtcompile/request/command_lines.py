"""Turns options in normal form into the flags of one compiler or linker.

NVCC passes its arguments on through a shell and quotes only some of them. This module escapes the arguments that
NVCC quotes, and rejects others that contain a shell's special characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rtcompile.errors import InvalidRequest
from rtcompile.request.option_table import (
    BY_NAME,
    FIRST_WITH_TILE,
    LTO_FLAGS,
    TILE_IS_OFF,
    Version,
)
from rtcompile.request.options import Options
from rtcompile.request.values import Arch


def for_nvrtc(
    options: Options, arch: Arch, target: str, nvrtc: Version, include_dirs: Sequence[str]
) -> tuple[str, ...]:
    """Return NVRTC's command line, with the whole search path; `arch` replaces the options' own."""
    line = [f"--gpu-architecture={arch if target == 'cubin' else arch.virtual}"]
    if nvrtc >= FIRST_WITH_TILE:
        line.append(f"--diag-error={TILE_IS_OFF}")
    for name, value in _flags_for(options, target):
        spec = BY_NAME[name]
        if spec.nvrtc is None:
            continue
        if nvrtc >= spec.nvrtc:
            line.append(_spelled(name, value))
        elif name == "Werror":
            if "all-warnings" in value.split(","):
                line.append("-Xcudafe=--promote_warnings")
        else:
            raise InvalidRequest(
                f"--{name} needs NVRTC {spec.nvrtc[0]}.{spec.nvrtc[1]} or newer; "
                f"this is {nvrtc[0]}.{nvrtc[1]}; upgrade it or leave the option out"
            )
    line += [f"-{kind}{text}" for kind, text in options.macros]
    line += [f"-I{path}" for path in include_dirs]
    line += [f"--pre-include={path}" for path in options.pre_includes]
    line += [f"--ptxas-options={option}" for option in options.ptxas]
    line += options.unknown
    return tuple(line)


def for_nvcc(
    options: Options,
    arch: Arch,
    target: str,
    nvcc: Version,
    include_dirs: Sequence[str],
    *,
    beside: str = "",
) -> tuple[str, ...]:
    """Return nvcc's command line, without files and target; ``#include "…"`` searches `beside` first."""
    code = {"ptx": arch.virtual, "ltoir": f"lto_{str(arch)[3:]}"}.get(target, str(arch))
    line = [f"--generate-code=arch={arch.virtual},code={code}"]
    if nvcc >= FIRST_WITH_TILE:
        line.append(f"--diag-error={TILE_IS_OFF}")
    for name, value in _flags_for(options, target):
        if not BY_NAME[name].nvcc or name == "dlink-time-opt":  # implied by code=lto_90
            continue
        spelled = _spelled(name, value)
        line.append(nvcc_path(spelled) if name in _PATHS else _plain(spelled))
    line += [f"-{kind}{text.translate(_ESCAPES)}" for kind, text in options.macros]
    if beside:
        line.append(f"--compiler-options=-iquote,{_quoted(beside)}")
    line += [f"-I{_path(path)}" for path in include_dirs]
    line += [f"--compiler-options=-idirafter,{_quoted(path)}" for path in options.last_dirs]
    line += [f"--pre-include={_path(path)}" for path in options.pre_includes]
    line += [_plain(f"--ptxas-options={option}") for option in options.ptxas]
    line += map(_plain, options.unknown)
    return tuple(line)


def for_nvjitlink(options: Options, arch: Arch, nvjitlink: Version) -> tuple[str, ...]:
    """Return nvJitLink's options: those that affect linking."""
    line = [f"-arch={arch}"]
    if options.lto:
        line.append("-lto")
    fast = {} if options.get("use_fast_math") is None else _FAST_MATH
    for name, value in {**fast, **dict(options.flags)}.items():
        spec = BY_NAME[name]
        if spec.linker and nvjitlink >= spec.linker_since:
            value = {"true": "1", "false": "0"}.get(value, value)
            line.append(f"{spec.linker}={value}" if value else spec.linker)
    line += [f"-Xptxas={option}" for option in options.ptxas]
    return tuple(line)


_FAST_MATH = {"ftz": "true", "prec-div": "false", "prec-sqrt": "false", "fmad": "true"}


def _flags_for(options: Options, target: str) -> Iterator[tuple[str, str]]:
    # Only the target decides whether -dlto is passed, since NVRTC makes no cubin with it.
    for name, value in options.flags:
        if target == "ltoir" or name not in LTO_FLAGS:
            yield name, value
    if target == "ltoir" and not options.lto:
        yield "dlink-time-opt", ""


def _spelled(name: str, value: str) -> str:
    dashes = "-" if name == "Werror" else "--"  # NVRTC 13.3 rejects --Werror, nvcc the long name
    return f"{dashes}{name}={value}" if value else dashes + name


# --- nvcc's shell ---------------------------------------------------------------------------------

# Undocumented, measured with 13.0: nvcc puts definitions and directories between double quotes, and
# leaves options for ptxas, the front end and the host compiler unquoted.
_PATHS = frozenset({"compiler-bindir"})
_PLAIN = re.compile(r"[\w.,:=+/@%^-]*")


def _plain(word: str) -> str:
    """Return a word that nvcc may pass to a shell unquoted: without ``;``, ``$(``, blanks and the like."""
    if not _PLAIN.fullmatch(word):
        raise InvalidRequest(
            f"nvcc cannot take the option {word!r}: it passes it to a shell unquoted, and the "
            "shell would interpret some of it. Use only letters, digits and . , : = + / @ % ^ - _"
        )
    return word


# nvcc splits definitions at commas and passes them to a shell in quotes.
_ESCAPES = str.maketrans({",": r"\,", "$": r"\\$", "`": r"\\`", "\\": "\\" * 4})


def _path(path: str) -> str:
    """Return a path for nvcc, which splits at commas unless they are in quotes."""
    return _quoted(path) if "," in path else nvcc_path(path)


def _quoted(path: str) -> str:
    return f'"{nvcc_path(path)}"'


def nvcc_path(path: str) -> str:
    """Return a path that nvcc may put between double quotes for its shell."""
    if any(character in path for character in '$`\\"\n'):
        raise InvalidRequest(
            f"nvcc cannot take the path {path!r}: its shell would expand it; use a path without "
            '$ ` \\ " and line breaks'
        )
    return path
