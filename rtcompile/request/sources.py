"""What a source's text shows before it is compiled: what it includes, mentions and needs. Pure.

The rules read the text and no more, and err on the side of a slower build.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rtcompile.files.headers import SearchDir
from rtcompile.request import cxx

# --- the compiler's include trace ------------------------------------------------------------


def parse_trace(raw: bytes) -> tuple[str, ...]:
    """Return the headers in the output of ``-Xcudafe --trace_includes``, in order of first inclusion.

    One line per inclusion, one blank per level of nesting; seen in NVRTC 12.9 and 13.0. The
    compiler's own texts (``__nv_nvrtc_builtin_header.h``, ``__nv_name_map``) are no files.
    """
    paths = (line.lstrip(" ") for line in raw.decode("utf-8", "surrogateescape").split("\n"))
    return tuple(dict.fromkeys(p for p in paths if p and not p.startswith("__nv_")))


def labelled(path: str, search: Sequence[SearchDir]) -> str:
    """Return a header's name in tables: ``"mma.h  (cudart)"``, or its path outside the search path."""
    index, rest = relative_to(search)(path)
    return f"{rest}  ({search[index].label})" if index >= 0 else path


def relative_to(search: Sequence[SearchDir]) -> Callable[[str], tuple[int, str]]:
    """Return a function of paths: the index of the innermost search directory, and the rest; else (-1, path)."""
    prefixes: dict[str, int] = {}
    for index, directory in enumerate(search):
        prefixes.setdefault(directory.path.rstrip("/") + "/", index)

    def split(path: str) -> tuple[int, str]:
        end = path.rfind("/") + 1
        while end:
            index = prefixes.get(path[:end])
            if index is not None:
                return index, path[end:]
            end = path.rfind("/", 0, end - 1) + 1
        return -1, path

    return split


# --- precompiled headers ---------------------------------------------------------------------


def split_prefix(source: str) -> tuple[str, str]:
    """Return the directives that open a source, up to its last leading include, and the text that follows.

    Comments and blank lines are left out, so sources which differ only in those share a precompiled
    header. ``#line`` and ``#pragma nv_no_pch`` end it: the compiler makes none there.
    """
    # Before C++17 a trigraph may hide what follows.
    if len(source) > cxx.MOST_READ or "include" not in source or "??/" in source:
        return "", source
    text = cxx.Text(source)
    directives: list[str] = []
    usable = depth = end = 0
    included = False
    for directive in text.directives(opening=True):
        name = directive.name
        said = text.text[directive.start : directive.end]
        if not said.rstrip().endswith("\\"):  # which would then join the line with the next
            said = said.rstrip()
        if name == "line" or name.isdigit() or 'R"' in said:  # what was spliced in it is not to be
            break
        if name == "pragma" and cxx.has_word(directive.body, ("nv_no_pch",)):
            break
        directives.append(said)
        depth += name in ("if", "ifdef", "ifndef")
        depth -= name == "endif"
        included |= name == "include"
        if depth == 0 and name in ("include", "endif"):
            usable, end = len(directives), text.origin(directive.end)
    if not (included and usable):
        return "", source
    return "\n".join(directives[:usable]) + "\n", source[end:]


# --- What the texts of a source and its headers say of the time and of their own paths ------------

_CLOCK = ("__DATE__", "__TIME__", "__TIMESTAMP__")
_OWN_PATH = ("__FILE", "__BASE_FILE__", "__builtin_FILE", "source_location")


class Mentions(NamedTuple):
    """What a text mentions that decides who may use a build, if anybody."""

    clock: str  # the first of ``__DATE__``, ``__TIME__``, ``__TIMESTAMP__`` in the code, "" if none
    own_path: bool  # whether the text can put its own path into the code (``__FILE__``)


@functools.lru_cache(maxsize=64)  # a build asks thrice of the same few texts
def scan(text: str) -> Mentions:
    """Read a source or a header; a mention in a comment counts only where readers may differ on what one is."""
    said = cxx.joined(text)
    clock = next((macro for macro in _CLOCK if macro in said), "")
    if clock and len(text) <= cxx.MOST_READ and len([*cxx.spellings(text)]) == 1:
        reading = cxx.Text(text)
        code = reading.code()
        if not reading.differs:
            clock = next((macro for macro in _CLOCK if macro in code), "")
    return Mentions(clock, any(word in said for word in _OWN_PATH))


# --- Builds that need little of a compiler --------------------------------------------------------

# One of these words must be in a source that has a file read: in `#include`, `#embed`, a pragma, `import` of a
# module, `__has_include`. What a `##` may make the last of begins with one of the pieces, as a whole word.
_READING = ("include", "import", "embed", "pch", "__has_")
_PASTED_STARTS = ("_", "__", "__h", "__ha", "__has")

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
    """Return whether a build surely reads no file besides its source: comments and strings count, too."""
    given = "\n\n".join(o for o in options if not o.startswith(("-I", "--include-path")))
    if len(source) > cxx.MOST_READ or any(sign in given for sign in "#%?"):
        return False
    return not any(_may_read(text.lower()) for text in cxx.spellings(f"{source}\n\n{given}"))


def _may_read(text: str) -> bool:
    is_pasted = ("##" in text or "%:%:" in text) and cxx.has_word(text, _PASTED_STARTS)
    # Pieces of a string are one string for the assembler.
    is_assembled = "asm" in text and ".include" in "".join(text.replace('"', "").split())
    return is_pasted or is_assembled or any(word in text for word in _READING)


@functools.lru_cache(maxsize=16)
def is_forgotten(options: tuple[str, ...]) -> bool:
    """Return whether none of the options has an effect on what NVRTC compiles next in the same process."""
    return all(
        option.startswith(("-D", "-U", "-I")) or option.lstrip("-").partition("=")[0] in _FORGOTTEN
        for option in options
    )
