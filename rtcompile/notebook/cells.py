"""Prepares a cell of CUDA C++ for the compiler: removes comments and blank lines. Pure.

So an edit of a comment does not change the compiled source, whose build is found in the cache. For
messages, places in that source are turned back into places in the cell.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rtcompile.core import cxx
from rtcompile.messages.diagnostics import Diagnostic
from rtcompile.notebook import definitions
from rtcompile.notebook.definitions import KernelText

# The cell's number is not in the name, since the position of a cell must not change its key.
PROGRAM = "cell.cu"

# A source with one of these depends on the numbers of its lines, which must then stay.
_NUMBERED = re.compile(r"\b(?:__LINE__|assert|source_location)\b")
# Matches a line number in a message that refers to the message's own file.
_AT_LINE = re.compile(r"\bat line (\d{1,9})\b(?! of )")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell's code."""

    text: str  # as it was written
    source: str  # what the compiler reads
    kernels: tuple[KernelText, ...]
    # Of each line of `source` the line of the cell, and where in `text` each of its characters stands.
    _places: tuple[tuple[int, list[int]], ...]

    def in_cell(self, diagnostic: Diagnostic) -> Diagnostic:
        """Return a diagnostic with places in the cell instead of places in `source`."""
        notes = tuple(self.in_cell(note) for note in diagnostic.notes)
        message = _AT_LINE.sub(self._line_in_cell, diagnostic.message)
        diagnostic = replace(diagnostic, message=message)
        if diagnostic.file != PROGRAM or not 0 < diagnostic.line <= len(self._places):
            return replace(diagnostic, notes=notes)
        line, offsets = self._places[diagnostic.line - 1]
        column = 0
        if 0 < diagnostic.column <= len(offsets):
            offset = offsets[diagnostic.column - 1]
            line, column = _line(self.text, offset), offset - self.text.rfind("\n", 0, offset)
        # The compiler's excerpt shows `source`. It is dropped, so the cell's own line is
        # shown.
        return replace(diagnostic, line=line, column=column, excerpt="", notes=notes)

    def _line_in_cell(self, match: re.Match[str]) -> str:
        number = int(match[1])
        known = 0 < number <= len(self._places)
        return f"at line {self._places[number - 1][0]}" if known else match[0]


def read(text: str, *, keep_lines: bool = False) -> Cell:
    """Return a cell without its comments; with `keep_lines` each line stays where it is."""
    pieces = list(_pieces(text))
    # C++ replaces each comment by one blank, even one of several lines.
    texts = [" " if kind == "comment" else text[a:b] for a, b, kind in pieces]
    stripped = "".join(texts)
    code = "".join(
        re.sub(r"[^\n]", " ", piece) if kind == "literal" else piece
        for piece, (_, _, kind) in zip(texts, pieces, strict=True)
    )
    keep_lines = keep_lines or _NUMBERED.search(stripped) is not None
    origins = ((a,) if kind == "comment" else range(a, b) for a, b, kind in pieces)
    offsets = [*itertools.chain.from_iterable(origins), len(text)]
    verbatim = _verbatim(text, pieces)
    lines: list[str] = []
    places: list[tuple[int, list[int]]] = []
    at = 0
    for line in stripped.split("\n"):
        here = offsets[at : at + len(line) + 1]
        at += len(line) + 1
        number = _line(text, here[len(line) - len(line.lstrip())])
        if not line.strip() and number not in verbatim:
            continue
        if keep_lines:
            missing = number - 1 - len(lines)
            lines += [""] * missing
            places += [(len(places) + 1 + i, []) for i in range(missing)]
        lines.append(line if number in verbatim else line.rstrip())
        places.append((number, here))
    source = "\n".join(lines) + "\n"
    return Cell(text, source, definitions.find(stripped, code), tuple(places))


def _pieces(source: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, kind as the scanner names it) from the first character to the last."""
    text = cxx.Text(source)
    at = 0
    for kind, _, end in text.pieces():
        start, at = at, text.origin(end)
        yield start, at, kind


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def _verbatim(source: str, pieces: Sequence[tuple[int, int, str]]) -> frozenset[int]:
    """Return the lines that must stay even if blank: those in raw strings and after a backslash."""
    lines = {n for n, line in enumerate(source.split("\n"), 2) if line.endswith("\\")}
    for start, end, kind in pieces:
        if kind == "literal" and "\n" in source[start:end]:
            first = source.count("\n", 0, start) + 1
            lines.update(range(first, first + source.count("\n", start, end) + 1))
    return frozenset(lines)
