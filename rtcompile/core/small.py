"""Builds that need little of a compiler: no file, none of CUDA's own declarations, no process anew. Pure.

The rules read the text and no more, and err on the side of a slower build.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

__all__ = ["is_forgotten", "needs_no_declarations", "reads_no_file"]

# What a source must say to have a file read, on one line: `#include`, `#include_next`, `#import`,
# `#embed`, something of them in a macro or a pragma; `__has_include`; `import` of a module. Not
# "important" in a comment. A comment may stand behind the `#`, for which there are other spellings.
_READING = re.compile(
    r"(?:#|%:).*(?:include|import|embed|pch)|(?:#|%:)[ \t\v\f]*/\*|__has_|\?\?[=/]"
    r"|^[ \t\v\f]*(?:export\b.*)?import\b|\.include",
    re.IGNORECASE | re.MULTILINE,
)
# A line goes on behind a backslash at its end, which may tear a name apart.
_SPLICE = r"\\[ \t\v\f]*\r?\n"
# An option may be a part of any of that.
_READING_OPTION = ("include", "import", "embed", "pch", "#", "%", "?", "__has")
_SEARCH_OPTIONS = ("-I", "--include-path")

# What NVRTC's `--minimal` leaves out: textures and surfaces, the runtime's and the driver's types and
# functions, launches from kernels; all of it is named for what it is, macros too, for which `#if` could
# ask without an error. The compiler's own macros stay. A name may be put together by `##`.
_DECLARED = re.compile(
    r"<<<|##|%:%:|\?\?"
    r"|(?<![A-Za-z0-9_])_*(?:cu(?:da)?[A-Z_]|CU(?!DA_ARCH__|DACC(?:_RTC)?__)|cuda|tex|surf|TEX|SURF|nv|NV(?!IDIA\b))"
    r"|(?<![A-Za-z0-9_])(?:MAJOR_VERSION|MINOR_VERSION|PATCH_LEVEL)"
)
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
    text = re.sub(_SPLICE, "", source) if "\\" in source else source
    return not _READING.search(text) and _read_no_file(tuple(options))


@functools.lru_cache(maxsize=16)  # the variants of a batch have the same options
def _read_no_file(options: tuple[str, ...]) -> bool:
    told = [option.lower() for option in options if not option.startswith(_SEARCH_OPTIONS)]
    return not any(word in option for option in told for word in _READING_OPTION)


def needs_no_declarations(source: str, options: Sequence[str], target: str) -> bool:
    """Say whether NVRTC's ``--minimal`` can make no difference to the code of a source.

    Where this is wrong the compiler refuses, and is asked again without: a name that it does not know
    is an error.
    """
    return (
        target == "cubin"
        and reads_no_file(source, options)
        and not _DECLARED.search(source)
        and _tell_nothing(tuple(options))
    )


@functools.lru_cache(maxsize=16)
def _tell_nothing(options: tuple[str, ...]) -> bool:
    return not any(
        option.lstrip("-").startswith(_TELLING_OPTIONS) for option in options
    ) and not any(_DECLARED.search(o[2:]) for o in options if o.startswith(("-D", "--define")))


@functools.lru_cache(maxsize=16)
def is_forgotten(options: tuple[str, ...]) -> bool:
    """Say whether none of the options has an effect on what NVRTC compiles next in the same process."""
    return all(
        option.startswith(("-D", "-U", "-I")) or option.lstrip("-").partition("=")[0] in _FORGOTTEN
        for option in options
    )
