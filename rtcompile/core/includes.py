"""What a build read, and what it would have read had another file been there. Pure: text in, facts out.

The compiler's own trace says which headers were read. Three things are not in it and decide the
result too: a file that would be found earlier in the search, the answers to ``__has_include``, and
the clock. They are taken from the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rtcompile.core.request import Header, SearchDir

__all__ = [
    "Dependencies",
    "Mentions",
    "parse_depfile",
    "parse_trace",
    "pch_prefix",
    "place",
    "scan",
    "spellings",
]


@dataclass(frozen=True, slots=True)
class Dependencies:
    """All that a build's result depends on besides the request.

    Attributes
    ----------
    headers : tuple of Header
        Every header that was read, in order of first inclusion.
    absent : tuple of str
        Paths that must not exist: a file there would be read instead, or would turn a
        ``__has_include``.
    present : tuple of str
        Paths that must exist, though they were not read.
    answers : tuple of str
        The ``__has_include`` candidates that exist, as label and name: their place-free form.
    newest_ns : int
        Change time (ns since the epoch) of the last changed of these files.
    own_path : tuple of str
        Labels of the headers that mention ``__FILE__`` or its kind.
    uncacheable : str
        Why the build cannot be cached, ``""`` if it can.
    """

    headers: tuple[Header, ...] = ()
    absent: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    newest_ns: int = 0
    own_path: tuple[str, ...] = ()
    uncacheable: str = ""


# --- what the compiler says ------------------------------------------------------------------


def parse_trace(raw: bytes) -> tuple[str, ...]:
    """Return the headers in the output of ``-Xcudafe --trace_includes``, in order of first inclusion.

    One line per inclusion, one blank per level of nesting; seen in NVRTC 12.9 and 13.0. The
    compiler's own texts (``__nv_nvrtc_builtin_header.h``, ``__nv_name_map``) are no files.
    """
    paths = (line.lstrip(" ") for line in raw.decode("utf-8", "surrogateescape").split("\n"))
    return tuple(dict.fromkeys(p for p in paths if p and not p.startswith("__nv_")))


def parse_depfile(text: str) -> tuple[str, ...]:
    """Return the prerequisites in a Make rule, as ``nvcc -MD`` writes it, the first one included."""
    _, _, prerequisites = text.replace("\\\n", " ").partition(": ")
    words = re.findall(r"(?:\\[ #]|\$\$|\S)+", prerequisites)
    unescaped = (re.sub(r"\\([ #])", r"\1", word).replace("$$", "$") for word in words)
    return tuple(dict.fromkeys(unescaped))


def place(path: str, search: Sequence[SearchDir]) -> tuple[int, str]:
    """Return (index of the search directory that holds `path`, the rest); (-1, path) outside all.

    Of nested directories the innermost: ``include/cccl`` rather than ``include``.
    """
    best, length = -1, 0
    for index, directory in enumerate(search):
        prefix = directory.path.rstrip("/") + "/"
        if len(prefix) > length and path.startswith(prefix):
            best, length = index, len(prefix)
    return best, path[length:]


def spellings(path: str, search: Sequence[SearchDir]) -> list[tuple[int, str]]:
    """Return every (index of a search directory, name) under which `path` may have been included.

    The trace does not say how a header was spelled. Too many spellings give a check too many,
    too few a stale hit; so a header outside all directories (a host compiler's own, say) counts
    as found after all of them, by any of its tails.
    """
    found = []
    for index, directory in enumerate(search):
        prefix = directory.path.rstrip("/") + "/"
        if path.startswith(prefix):
            found.append((index, path[len(prefix) :]))
    if not found:
        parts = path.strip("/").split("/")
        found = [(len(search), "/".join(parts[start:])) for start in range(len(parts))]
    return found


# --- what the text says ----------------------------------------------------------------------

_CLOCK = ("__DATE__", "__TIME__", "__TIMESTAMP__")
_OWN_PATH = ("__FILE", "__BASE_FILE__", "__builtin_FILE", "source_location")
_CONTINUATION = re.compile(r"\\[ \t]*\r?\n")
_COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^()\\\s]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.DOTALL
)
_GAP = r"(?:[ \t]|/\*[^\n]*?\*/)*"
_INCLUDE = re.compile(rf'include(?:_next)?\b{_GAP}(?:"([^"\n]*)"|(<)|(\w))')
_HASH = re.compile(rf"(?:#|%:){_GAP}\Z")
_HAS_INCLUDE = re.compile(
    r'(\w*(?:has_include|HAS_INCLUDE)\w*)[ \t]*(?:\([ \t]*(?:(<[^>\n]*>|"[^"\n]*")|(\w*)))?'
)
_DEFINE = re.compile(r"[ \t]*(?:#|%:)[ \t]*define[ \t]+(\w+)(?:\(([^)\n]*)\))?")


@dataclass(frozen=True, slots=True)
class Mentions:
    """What a file's text says that its result may depend on.

    Comments and branches that are not taken count too, where that costs only a check too many.

    Attributes
    ----------
    quoted : tuple of str
        Names in ``#include "…"``.
    computed : bool
        Whether a macro is included: any name may have been meant.
    asked : tuple of str
        What ``__has_include`` and its wrappers are asked for: ``<x>``, ``"x"``. A name without
        delimiters is a macro's, and nobody knows which file it asks for.
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

    ``#define _CCCL_HAS_INCLUDE(_X) __has_include(_X)`` hands its parameter on: its uses count, its
    definition does not. A macro of another name hides its uses, so its parameter comes back.
    """
    # Searched for first: the expression alone takes a second for CuTe's headers.
    if "has_include" not in text and "HAS_INCLUDE" not in text:
        return ()
    asked: dict[str, None] = {}
    for match in _HAS_INCLUDE.finditer(text):
        word, literal, argument = match.groups()
        start = text.rfind("\n", 0, match.start()) + 1
        define = _DEFINE.match(text, start)
        if literal:
            asked[literal] = None
        elif define is not None and define.start(1) == match.start():
            pass  # the definition's own name
        elif argument is None:
            # "#ifdef __has_include" asks for nothing; "#define ASK __has_include" for anything.
            if define is not None:
                asked[word] = None
        elif argument:
            parameters = [name.strip() for name in (define[2] or "").split(",")] if define else []
            wrapper = define is not None and "has_include" in define[1].lower()
            if not (wrapper and argument in parameters):
                asked[argument] = None
    return tuple(asked)


def _clock(text: str) -> str:
    """Return the clock's macro that is in the code; a mention in a comment or a string is none.

    No header of CUDA 12.9, 13.0 or CUTLASS 4.2 has one, so any in the code counts, expanded or not.
    """
    if "__DATE__" not in text and "__TIME" not in text:
        return ""
    code = _COMMENT_OR_STRING.sub(" ", text)
    return next((macro for macro in _CLOCK if macro in code), "")


# --- precompiled headers ---------------------------------------------------------------------

_BLANK = re.compile(r"\s+|//(?:\\\r?\n|[^\n])*|/\*.*?\*/", re.DOTALL)
_DIRECTIVE = re.compile(r"(?:#|%:)[ \t]*(\w*)(?:\\\r?\n|/\*.*?\*/|[^\n])*", re.DOTALL)


def pch_prefix(source: str) -> str:
    """Return the directives that open `source`, up to its last leading include; ``""`` if none.

    Comments and blank lines are left out, so that sources which differ only in those share a
    precompiled header. ``#line`` and ``#pragma nv_no_pch`` end it: the compiler makes none there.
    """
    directives: list[str] = []
    usable = depth = position = 0
    while position < len(source):
        blank = _BLANK.match(source, position)
        if blank:
            position = blank.end()
            continue
        directive = _DIRECTIVE.match(source, position)
        if directive is None:
            break
        text, word = _CONTINUATION.sub("", directive[0]).rstrip(), directive[1]
        if word == "line" or re.match(r"(?:#|%:)\s*pragma\s+nv_no_pch\b", text):
            break
        position = directive.end()
        directives.append(text)
        depth += word in ("if", "ifdef", "ifndef")
        depth -= word == "endif"
        if depth == 0 and word in ("include", "endif"):
            usable = len(directives)
    prefix = directives[:usable]
    if not any(re.match(r"(?:#|%:)\s*include\b", text) for text in prefix):
        return ""
    return "\n".join(prefix) + "\n"
