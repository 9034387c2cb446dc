"""What the symbols of a cell's code are called in the cell, read from their mangled names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rtcompile.core.cubin import Symbol
from rtcompile.core.symbols import names_in

__all__ = ["own_variables"]

_WORD = re.compile(r"[A-Za-z_]\w*")
_NAMESPACE = re.compile(r"\bnamespace\s+([\w:]+)")
_CONSTANT_LINE = re.compile(r"^\s*#\s*include\b|\bconst(?:expr)?\b")
_LOCAL = re.compile(r"_ZZ(?P<function>.*)E(?P<length>\d+)(?P<name>[A-Za-z_]\w*)")


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
            names = [*names_in(f"_Z{local['function']}"), local["name"][: int(local["length"])]]
            return words.issuperset(names)
        *outer, name = names_in(symbol) or [symbol]
        return name in words and spaces.issuperset(outer)

    return frozenset(
        symbol.name
        for symbol in symbols
        if symbol.kind == "object"
        and symbol.section.startswith((".nv.global", ".nv.constant"))
        and is_own(symbol.name)
    )
