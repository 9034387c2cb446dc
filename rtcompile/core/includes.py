"""What a build read, and what it would have read had another file been there. Pure: text in, facts out.

The compiler's own trace says which headers were read. Three things are not in it and decide the
result too: a file that would be found earlier in the search, the answers to ``__has_include``, and
the clock. They are taken from the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rtcompile.core.request import Header, SearchDir

__all__ = [
    "Dependencies",
    "clock_macros",
    "file_macros",
    "has_include_names",
    "include_spellings",
    "parse_depfile",
    "parse_trace",
    "pch_prefix",
    "place",
    "shadows",
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
    names_files : tuple of str
        Labels of the headers that mention ``__FILE__`` or its kind.
    uncacheable : str
        Why the build cannot be cached, ``""`` if it can.
    """

    headers: tuple[Header, ...] = ()
    absent: tuple[str, ...] = ()
    present: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    newest_ns: int = 0
    names_files: tuple[str, ...] = ()
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


def shadows(path: str, search: Sequence[SearchDir]) -> Iterator[tuple[str, str]]:
    """Yield the (directory, name) at which a file would have been found before `path`.

    The trace does not say how `path` was spelled, so every directory that holds it counts: a
    spelling that was not used gives a probe too many, never one too few.
    """
    for index, directory in enumerate(search):
        prefix = directory.path.rstrip("/") + "/"
        if path.startswith(prefix):
            for earlier in search[:index]:
                yield earlier.path.rstrip("/"), path[len(prefix) :]


# --- what the text says ----------------------------------------------------------------------

_CONTINUATION = re.compile(r"\\[ \t]*\r?\n")
_GAP = r"(?:[ \t]|/\*[^\n]*?\*/)*"
_INCLUDE = re.compile(rf'include(?:_next)?\b{_GAP}(?:"([^"\n]*)"|(<)|(\w))')
_HASH = re.compile(rf"(?:#|%:){_GAP}\Z")


def _splice(text: str) -> str:
    return _CONTINUATION.sub("", text)


def include_spellings(text: str) -> tuple[tuple[str, ...], bool]:
    """Return the names in ``#include "…"`` and whether some include is computed by a macro.

    Branches that are not taken and comments count too: they only add probes.
    """
    names: dict[str, None] = {}
    computed = False
    text = _splice(text)
    for match in _INCLUDE.finditer(text):
        line_start = text.rfind("\n", 0, match.start()) + 1
        if not _HASH.search(text[line_start : match.start()]):
            continue
        if match[1] is not None:
            names[match[1]] = None
        elif match[3]:
            computed = True
    return tuple(names), computed


_HAS_INCLUDE = re.compile(
    r'(\w*has_include\w*)[ \t]*(?:\([ \t]*(?:(<[^>\n]*>|"[^"\n]*")|(\w*)))?', re.IGNORECASE
)
_DEFINE = re.compile(r"^[ \t]*(?:#|%:)[ \t]*define[ \t]+(\w+)(?:\(([^)\n]*)\))?")


def has_include_names(text: str) -> tuple[str, ...]:
    """Return what ``__has_include`` and its wrappers are asked for: ``<x>``, ``"x"``.

    A wrapper is a macro with ``has_include`` in its name that hands its parameter on, as
    ``_CCCL_HAS_INCLUDE(_X)`` does. Anything computed otherwise comes back without its delimiters:
    nobody knows which file it asks for.
    """
    names: dict[str, None] = {}
    if "has_include" not in text.lower():  # the search below costs a second for CuTe's headers
        return ()
    text = _splice(text)
    for match in _HAS_INCLUDE.finditer(text):
        word, literal, argument = match.groups()
        start = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", match.end())
        define = _DEFINE.match(text[start : end if end >= 0 else len(text)])
        if literal:
            names[literal] = None
        elif define is not None and start + define.start(1) == match.start():
            pass  # the definition of a wrapper, not a use of it
        elif argument is None:  # `#ifdef __has_include` asks for nothing, an alias for anything
            if define is not None:
                names[word] = None
        elif argument:
            parameters = [p.strip() for p in (define[2] or "").split(",")] if define else []
            wrapper = define is not None and "has_include" in define[1].lower()
            if not (wrapper and argument in parameters):
                names[argument] = None
    return tuple(names)


_COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"([^()\\\s]{0,16})\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.DOTALL
)
_CLOCK = ("__DATE__", "__TIME__", "__TIMESTAMP__")
_FILE = ("__FILE__", "__builtin_FILE", "source_location", "__BASE_FILE__", "__FILE_NAME__")


def clock_macros(text: str) -> str:
    """Return ``__DATE__``, ``__TIME__`` or ``__TIMESTAMP__`` if the code has one, else ``""``.

    A mention in a comment or a string is none. No header of CUDA 12.9, 13.0 or CUTLASS 4.2 has
    one, so any mention counts, expanded or not.
    """
    text = _splice(text)
    if not any(macro in text for macro in _CLOCK):
        return ""
    code = _COMMENT_OR_STRING.sub(" ", text)
    return next((macro for macro in _CLOCK if macro in code), "")


def file_macros(text: str) -> bool:
    """Say whether the text can put its own path into the code, or into a constant made from it."""
    text = _splice(text)
    return any(macro in text for macro in _FILE)


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
        text, word = _splice(directive[0]).rstrip(), directive[1]
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
