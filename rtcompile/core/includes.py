"""Where headers lie: the compiler's include trace, the search path, and what opens a source.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rtcompile.core import cxx
from rtcompile.core.header import SearchDir

# --- the compiler's include trace ------------------------------------------------------------


def parse_trace(raw: bytes) -> tuple[str, ...]:
    """Return the headers in the output of ``-Xcudafe --trace_includes``, in order of first inclusion.

    One line per inclusion, one blank per level of nesting; seen in NVRTC 12.9 and 13.0. The
    compiler's own texts (``__nv_nvrtc_builtin_header.h``, ``__nv_name_map``) are no files.
    """
    paths = (line.lstrip(" ") for line in raw.decode("utf-8", "surrogateescape").split("\n"))
    return tuple(dict.fromkeys(p for p in paths if p and not p.startswith("__nv_")))


def place(path: str, search: Sequence[SearchDir]) -> tuple[int, str]:
    """Return the index of the innermost search directory of `path`, and the rest; else (-1, path)."""
    return placing(search)(path)


def labelled(path: str, search: Sequence[SearchDir]) -> str:
    """Return what a header is called in a table: ``"mma.h  (cudart)"``; its path where none has it."""
    index, rest = place(path, search)
    return f"{rest}  ({search[index].label})" if index >= 0 else path


def placing(search: Sequence[SearchDir]) -> Callable[[str], tuple[int, str]]:
    """Return `place` for a search path that is sorted once: CuTe has 392 headers, looked at five times."""
    prefixes = [(d.path.rstrip("/") + "/", index) for index, d in enumerate(search)]
    prefixes.sort(key=lambda prefix: -len(prefix[0]))

    def placed(path: str) -> tuple[int, str]:
        for prefix, index in prefixes:
            if path.startswith(prefix):
                return index, path[len(prefix) :]
        return -1, path

    return placed


# --- precompiled headers ---------------------------------------------------------------------


def pch_prefix(source: str) -> str:
    """Return the directives that open `source`, up to its last leading include; ``""`` if none.

    Comments and blank lines are left out, so sources which differ only in those share a
    precompiled header. ``#line`` and ``#pragma nv_no_pch`` end it: the compiler makes none there.
    """
    return split_prefix(source)[0]


def split_prefix(source: str) -> tuple[str, str]:
    """Return `pch_prefix`, and the text of `source` that follows it."""
    # Before C++17 a trigraph may hide what follows.
    if "include" not in source or "??/" in source:
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
