"""Dependencies of a source that the compiler's include trace does not show. Pure."""

from __future__ import annotations

import re
from itertools import chain
from typing import NamedTuple

__all__ = ["Mentions", "scan"]

_CLOCK = ("__DATE__", "__TIME__", "__TIMESTAMP__")
_OWN_PATH = ("__FILE", "__BASE_FILE__", "__builtin_FILE", "source_location")
_CONTINUATION = re.compile(r"\\[ \t]*\r?\n")
_COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^()\\\s]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.DOTALL
)
_GAP = r"(?:[ \t]|/\*[^\n]*?\*/)*"
_INCLUDE = re.compile(rf'include(?:_next)?\b{_GAP}(?:"([^"\n]*)"|(<)|(\w))')
_HASH = re.compile(rf"(?:#|%:){_GAP}\Z")
# One expression per spelling, each beginning with literal letters, which `re` finds by a fast
# search. An alternation or a leading `\w*` would try every position, which takes a second for
# CuTe's 8 MB.
_HAS_INCLUDE = tuple(
    re.compile(word + r'\w*[ \t]*(?:\([ \t]*(?:(<[^>\n]*>|"[^"\n]*")|(\w*)))?')
    for word in ("has_include", "HAS_INCLUDE")
)
_DEFINE = re.compile(r"[ \t]*(?:#|%:)[ \t]*define[ \t]+(\w+)(?:\(([^)\n]*)\))?")


class Mentions(NamedTuple):
    """What a file's text mentions that the result of a build may depend on.

    Mentions in comments and in branches not taken count too, where that only costs an extra check.

    Attributes
    ----------
    quoted : tuple of str
        Names in ``#include "…"``.
    computed : bool
        Whether a macro is included: any name may have been meant.
    asked : tuple of str
        What ``__has_include`` and its wrappers are asked for: ``<x>``, ``"x"``. A name without
        delimiters is a macro, and the file that it stands for is unknown.
    clock : str
        The first of ``__DATE__``, ``__TIME__``, ``__TIMESTAMP__`` in the code, ``""`` if none.
    own_path : bool
        Whether the text can put its own path into the code (``__FILE__``).
    """

    quoted: tuple[str, ...]
    computed: bool
    asked: tuple[str, ...]
    clock: str
    own_path: bool


def scan(text: str) -> Mentions:
    """Read a source or a header for what the compiler's trace does not show."""
    text = _CONTINUATION.sub("", text)
    quoted, computed = _inclusions(text)
    return Mentions(
        quoted=quoted,
        computed=computed,
        asked=_asked(text),
        clock=_clock(text),
        own_path=any(word in text for word in _OWN_PATH),
    )


def _inclusions(text: str) -> tuple[tuple[str, ...], bool]:
    quoted: dict[str, None] = {}
    computed = False
    for match in _INCLUDE.finditer(text):
        line_start = text.rfind("\n", 0, match.start()) + 1
        if not _HASH.search(text[line_start : match.start()]):
            continue
        if match[1] is not None:
            quoted[match[1]] = None
        elif match[3]:
            computed = True
    return tuple(quoted), computed


def _asked(text: str) -> tuple[str, ...]:
    """Return what is asked of ``__has_include``, directly or through a macro named for it.

    ``#define _CCCL_HAS_INCLUDE(_X) __has_include(_X)`` passes its parameter on: the macro's uses
    count, its definition does not. The uses of a macro whose name does not contain ``HAS_INCLUDE``
    are not found, so the parameter itself is returned, as a name whose file is unknown.
    """
    asked: dict[str, None] = {}
    for match in chain.from_iterable(word.finditer(text) for word in _HAS_INCLUDE):
        literal, argument = match.groups()
        start = text.rfind("\n", 0, match.start()) + 1
        define = _DEFINE.match(text, start)
        if literal:
            asked[literal] = None
        elif define is not None and define.start(1) <= match.start() < define.end(1):
            pass  # the definition's own name
        elif argument is None:
            # "#ifdef __has_include" asks about no file; "#define ASK __has_include" may ask about
            # any.
            if define is not None:
                asked["__has_include"] = None
        elif argument:
            parameters = [name.strip() for name in (define[2] or "").split(",")] if define else []
            wrapper = define is not None and any(word.search(define[1]) for word in _HAS_INCLUDE)
            if not (wrapper and argument in parameters):
                asked[argument] = None
    return tuple(asked)


def _clock(text: str) -> str:
    """Return the first date or time macro in the code, not counting comments and strings.

    No header of CUDA 12.9, 13.0 or CUTLASS 4.2 has one, so any in the code counts, expanded or not.
    """
    if "__DATE__" not in text and "__TIME" not in text:
        return ""
    code = _COMMENT_OR_STRING.sub(" ", text)
    return next((macro for macro in _CLOCK if macro in code), "")
