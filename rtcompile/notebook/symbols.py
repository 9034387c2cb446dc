"""What the symbols of a cell's code are called in the cell, read from their mangled names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rtcompile.core.cubin import Symbol

__all__ = ["own_variables", "simple_name"]

_WORD = re.compile(r"[A-Za-z_]\w*")
_NAMESPACE = re.compile(r"\bnamespace\s+([\w:]+)")
_CONSTANT_LINE = re.compile(r"^\s*#\s*include\b|\bconst(?:expr)?\b")
_LOCAL = re.compile(r"_ZZ(?P<function>.*)E(?P<length>\d+)(?P<name>[A-Za-z_]\w*)")


def simple_name(symbol: str) -> str:
    """Return the name in a mangled symbol, without namespaces: ``k`` of ``_ZN2ns1kEPf``."""
    return (_names(symbol) or [symbol])[-1]


def own_variables(symbols: Iterable[Symbol], text: str) -> frozenset[str]:
    """Return the symbols of the variables that a text defines and that may change.

    Variables of headers are left out, and so are those on lines that say ``const``.
    """
    words: set[str] = set()
    for line in text.split("\n"):
        if not _CONSTANT_LINE.search(line):
            words.update(_WORD.findall(line))
    spaces = {part for name in _NAMESPACE.findall(text) for part in name.split("::")}

    def is_own(symbol: str) -> bool:
        local = _LOCAL.fullmatch(symbol)
        if local is not None:  # of a function
            names = [*_names(f"_Z{local['function']}"), local["name"][: int(local["length"])]]
            return words.issuperset(names)
        *outer, name = _names(symbol) or [symbol]
        return name in words and spaces.issuperset(outer)

    return frozenset(
        symbol.name
        for symbol in symbols
        if symbol.kind == "object"
        and symbol.section.startswith((".nv.global", ".nv.constant"))
        and is_own(symbol.name)
    )


def _names(symbol: str) -> list[str]:
    """Return the namespaces and the name in a mangled symbol; none for a symbol as it is."""
    if not symbol.startswith("_Z"):
        return []
    rest = symbol[2:].removeprefix("N").removeprefix("L")
    found: list[str] = []
    while match := re.match(r"L?(\d+)", rest):
        end = match.end() + int(match[1])
        found.append(rest[match.end() : end])
        rest = rest[end:]
        if not symbol.startswith("_ZN"):
            break
    # NVRTC puts what is in no named namespace into one of its own.
    return [name for name in found if not name.startswith(("_INTERNAL_", "_GLOBAL__N_"))]
