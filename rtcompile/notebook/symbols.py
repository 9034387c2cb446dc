"""Finds the cell's own variables among the symbols of its code, by their mangled names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rtcompile.core.cubin import Symbol
from rtcompile.core.symbols import names_in

_WORD = re.compile(r"[A-Za-z_]\w*")
_NAMESPACE = re.compile(r"\bnamespace\s+([\w:]+)\s*\{")
_CONSTANT_LINE = re.compile(r"^\s*#\s*include\b|\bconst(?:expr)?\b")
# Matches a static variable of a function.
_LOCAL = re.compile(r"_ZZ(?P<function>.*)E(?P<length>\d+)(?P<name>[A-Za-z_]\w*)")


def own_variables(
    symbols: Iterable[Symbol], text: str, kernels: Iterable[str] = ()
) -> frozenset[str]:
    """Return the variables that a text defines and that are not constant, by their C++ names.

    Variables of headers are left out, those on lines that say ``const``, and static ones of
    `kernels`, which no other kernel sees.
    """
    words: set[str] = set()
    for line in text.split("\n"):
        if not _CONSTANT_LINE.search(line):
            words.update(_WORD.findall(line))
    spaces = {part for name in _NAMESPACE.findall(text) for part in name.split("::")}
    of_kernels = tuple(f"_Z{kernel.removeprefix('_')}E" for kernel in kernels)
    found = set()
    for symbol in symbols:
        if (
            symbol.kind != "object"
            or not symbol.section.startswith((".nv.global", ".nv.constant"))
            or symbol.name.startswith(of_kernels)
        ):
            continue
        local = _LOCAL.fullmatch(symbol.name)
        if local is not None:
            *outer, function = names_in(f"_Z{local['function']}") or [local["function"]]
            name = local["name"][: int(local["length"])]
            own, spelled = {function, name} <= words, f"{function}()::{name}"
        else:
            *outer, name = names_in(symbol.name) or [symbol.name]
            own, spelled = name in words, name
        if own and spaces.issuperset(outer):
            found.add("::".join([*outer, spelled]))
    return frozenset(found)
