"""Builds that need little of a compiler: no file, none of CUDA's own declarations, no process anew. Pure.

The rules read the text and no more, and err on the side of a slower build.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from rtcompile.core import cxx

# What a source must say to have a file read, beside `__has_include`: `#include`, `#include_next`,
# `#embed`, something of them in a macro or a pragma, all on one line; `import` of a module.
_READING = ("include", "import", "embed", "pch")
# What a `##` may make `__has_include` of, as the first piece; the whole of it is looked for anyway.
_PASTED = ("_", "__", "__h", "__ha", "__has")
# An option may be a part of any of that.
_READING_OPTION = (*_READING, "#", "%", "?", "__has")
_SEARCH_OPTIONS = ("-I", "--include-path")

# What NVRTC's `--minimal` leaves out: textures and surfaces, the runtime's and the driver's types and
# functions, launches from kernels; all of it is named for what it is, macros too, for which `#if` could
# ask without an error. The compiler's own macros stay. A name may be put together by `##`.
_DECLARED = (
    *("cu", "CU", "cuda", "tex", "surf", "TEX", "SURF", "nv", "NV"),
    *("MAJOR_VERSION", "MINOR_VERSION", "PATCH_LEVEL"),
)
_OF_THE_COMPILER = ("DA_ARCH__", "DACC__", "DACC_RTC__")  # behind "CU"
_UPPER = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ_")
# Options with which the code says more of the source than its instructions do, or is not code yet.
_TELLING_OPTIONS = (
    *("G", "device-debug", "lineinfo", "generate-line-info", "dc", "device-c", "rdc"),
    *("relocatable", "dlto", "minimal", "builtin", "no-source", "split", "ofast"),
)

# Options that NVRTC was seen to forget with the compile: in one process the code and the log of the next
# are those of a new one. Not so `--restrict` and `--optimization-info`, which hold from then on, and
# `--device-debug`, after which a `__grid_constant__` parameter is read in another way; for others, as what
# is handed on to ptxas, that is not known.
_FORGOTTEN = frozenset(
    (
        *("gpu-architecture", "arch", "std", "device-as-default-execution-space", "default-device"),
        *("device-int128", "ftz", "fmad", "prec-div", "prec-sqrt", "use_fast_math"),
        *("maxrregcount", "generate-line-info", "pre-include"),
        *("disable-warnings", "diag-suppress", "diag-error", "diag-warn"),
        "relocatable-device-code",
    )
)


def reads_no_file(source: str, options: Sequence[str]) -> bool:
    """Say whether a build reads no file besides its source."""
    may_read = any(_may_read(reading.text.lower()) for reading in cxx.readings(source))
    return not may_read and _read_no_file(tuple(options))


def _may_read(text: str) -> bool:
    """Look at comments and strings too, so no odd spelling of theirs can hide a directive."""
    if "__has_" in text or (("##" in text or "%:%:" in text) and cxx.has_word(text, _PASTED)):
        return True
    if "asm" in text and ".include" in "".join(text.replace('"', "").split()):
        return True  # pieces of a string are one string for the assembler
    if not any(word in text for word in _READING):
        return False
    return cxx.has_word(text, ("import",)) or any(map(_may_direct, text.split("\n")))


def _may_direct(line: str) -> bool:
    at = min((at for sign in ("#", "%:") if (at := line.find(sign)) >= 0), default=-1)
    if at < 0:
        return False
    # A comment that is open at the line's end may part the directive's words.
    open_comment = line.rfind("/*") >= max(at, line.rfind("*/") - 1)
    return open_comment or any(line.find(word, at) >= 0 for word in _READING)


@functools.lru_cache(maxsize=16)  # the variants of a batch have the same options
def _read_no_file(options: tuple[str, ...]) -> bool:
    told = [option.lower() for option in options if not option.startswith(_SEARCH_OPTIONS)]
    return not any(
        any(word in option for word in _READING_OPTION) or cxx.has_word(option, _PASTED)
        for option in told
    )


def needs_no_declarations(source: str, options: Sequence[str], target: str) -> bool:
    """Say whether ``--minimal`` surely changes no code; where wrong, NVRTC refuses and runs again."""
    return (
        target == "cubin"
        and reads_no_file(source, options)
        and not _may_need_declarations(source)
        and _tell_nothing(tuple(options))
    )


@functools.lru_cache(maxsize=16)
def _tell_nothing(options: tuple[str, ...]) -> bool:
    return not any(
        option.lstrip("-").startswith(_TELLING_OPTIONS) for option in options
    ) and not any(
        _may_need_declarations(o[2:]) for o in options if o.startswith(("-D", "--define"))
    )


def _may_need_declarations(source: str) -> bool:
    text = cxx.Text(source).text
    return any(sign in text for sign in ("<<<", "##", "%:%:", "??")) or any(
        _is_declared(text, stem) for stem in _DECLARED
    )


def _is_declared(text: str, stem: str) -> bool:
    """Say whether a word begins with a stem, behind underscores, that is not one of the compiler's own."""
    for end in cxx.words_with(text, stem):
        if stem == "cu":
            found = text[end : end + 1] in _UPPER
        elif stem == "CU":
            found = not text.startswith(_OF_THE_COMPILER, end)
        else:
            found = stem != "NV" or cxx.word_at(text, end) != "IDIA"
        if found:
            return True
    return False


@functools.lru_cache(maxsize=16)
def is_forgotten(options: tuple[str, ...]) -> bool:
    """Say whether none of the options has an effect on what NVRTC compiles next in the same process."""
    return all(
        option.startswith(("-D", "-U", "-I")) or option.lstrip("-").partition("=")[0] in _FORGOTTEN
        for option in options
    )
