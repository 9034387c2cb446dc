"""Undoes ``#line``, which gives lines other numbers and file names: finds a message's source line."""

from __future__ import annotations

import os.path

from rtcompile.core import cxx
from rtcompile.messages.diagnostics import Diagnostic


def line_in_source(diagnostic: Diagnostic, source: str, name: str) -> int:
    """Return the line of a source that a message is about, from 1, or 0 where there is none.

    ``#line`` may give several lines one number. Then it is the one whose text the compiler printed,
    and else the last.
    """
    if diagnostic.line <= 0:
        return 0
    changes = {line: (number, file) for line, number, file in cxx.renumbered(source)}
    if not changes:
        inside = _same(diagnostic.file, name) and diagnostic.line <= source.count("\n") + 1
        return diagnostic.line if inside else 0
    printed = diagnostic.excerpt.partition("\n")[0].strip()
    found = 0
    file, number = name, 0
    for physical, text in enumerate(source.split("\n"), 1):
        number += 1
        if physical in changes:
            number, file = changes[physical][0] - 1, changes[physical][1] or file
        elif number == diagnostic.line and _same(diagnostic.file, file):
            found = physical
            if printed and text.strip() == printed:
                return physical
    return found


def _same(one: str, other: str) -> bool:
    # nvcc puts the folder in front of the name.
    return one == other or os.path.basename(one) == os.path.basename(other) != ""
