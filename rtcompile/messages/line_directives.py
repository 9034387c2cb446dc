"""Undoes ``#line``, which gives lines other numbers and file names: finds a message's source line."""

from __future__ import annotations

import os.path

from rtcompile.core import cxx
from rtcompile.messages.diagnostics import Diagnostic

__all__ = ["line_in_source"]


def line_in_source(diagnostic: Diagnostic, source: str, name: str) -> int:
    """Return which line of a source a message is about, counted from 1.

    Parameters
    ----------
    diagnostic : Diagnostic
        The message, with the file and the line as ``#line`` made the compiler number them.
    source : str
        The program.
    name : str
        Its name in the log.

    Returns
    -------
    int
        0 where the message is about no line of this source. Where several lines have the number,
        the one whose text the compiler printed, and else the last of them.
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
