"""A cell of CUDA C++ taken apart, so that an edit rebuilds what it touches and nothing else. Pure.

Comments and blank lines never reach the compiler. Each kernel becomes a translation unit of its
own, with all that is not a kernel; unless they must stay together, in which case they do. Places
in a unit are turned back into places in the cell, for messages.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rtcompile.messages.diagnostics import Diagnostic
from rtcompile.notebook import definitions
from rtcompile.notebook.definitions import KernelText

__all__ = ["PROGRAM", "Cell", "Unit", "read", "without_comments"]

# Not the cell's number: where a cell stands in its notebook must not be part of its key.
PROGRAM = "cell.cu"

_TOKEN = re.compile(
    r"(?P<comment>//(?:\\\r?\n|[^\n])*|/\*.*?\*/)"
    r'|R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_NO_VARIABLE = re.compile(r"^\s*#\s*include\b|\bconst(?:expr)?\b")
# With one of these in it the number of a line is part of what it does.
_NUMBERED = re.compile(r"\b(?:__LINE__|assert|source_location)\b")


@dataclass(frozen=True, slots=True)
class Unit:
    """A translation unit made of a cell.

    Attributes
    ----------
    source : str
        What the compiler reads.
    kernels : tuple of KernelText
        The kernels in it.
    """

    source: str
    kernels: tuple[KernelText, ...]
    _places: tuple[tuple[int, tuple[int, ...]], ...]  # by line: the cell's, and its columns

    def in_cell(self, diagnostic: Diagnostic) -> Diagnostic:
        """Return a diagnostic with its places in this unit turned into places in the cell."""
        notes = tuple(self.in_cell(note) for note in diagnostic.notes)
        if diagnostic.file != PROGRAM or not 0 < diagnostic.line <= len(self._places):
            return replace(diagnostic, notes=notes)
        line, columns = self._places[diagnostic.line - 1]
        known = 0 < diagnostic.column <= len(columns)
        column = columns[diagnostic.column - 1] if known else 0
        # The compiler's excerpt is of the unit; without one the cell's own line is shown.
        return replace(diagnostic, line=line, column=column, excerpt="", notes=notes)


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell's code.

    Attributes
    ----------
    text : str
        Without comments.
    kernels : tuple of KernelText
        The kernels that it defines, in order.
    separable : bool
        Whether they can be compiled apart, as far as the text tells.
    """

    text: str
    kernels: tuple[KernelText, ...]
    separable: bool
    _origin: tuple[tuple[int, int], ...]  # line and column in the cell of each character
    _verbatim: frozenset[int]  # lines of the cell that stay as they are

    def units(self) -> list[Unit]:
        """Return a unit for each kernel, or one for all."""
        return [self.unit(kernel) for kernel in self.kernels] if self.separable else [self.whole()]

    def whole(self) -> Unit:
        """Return the whole cell as one unit."""
        return self._without(self.kernels, ())

    def unit(self, kernel: KernelText) -> Unit:
        """Return the unit that has `kernel`: the smallest that will do."""
        if not self.separable:
            return self.whole()
        return self._without((kernel,), [other for other in self.kernels if other != kernel])

    def may_change(self) -> frozenset[str]:
        """Return the words of what the kernels share that may be the names of variables."""
        spans = [span for kernel in self.kernels for span in kernel.spans]
        shared = "".join(self.text[start:end] for start, end in _gaps(len(self.text), spans))
        lines = (line for line in shared.split("\n") if not _NO_VARIABLE.search(line))
        return frozenset(word for line in lines for word in _WORD.findall(line))

    def _without(self, kernels: Sequence[KernelText], others: Sequence[KernelText]) -> Unit:
        kept = _gaps(len(self.text), [span for other in others for span in other.spans])
        text = "".join(self.text[start:end] for start, end in kept)
        origin = [place for start, end in kept for place in self._origin[start:end]]
        lines: list[str] = []
        places: list[tuple[int, tuple[int, ...]]] = []
        numbered = _NUMBERED.search(text) is not None
        at = 0
        for line in text.split("\n"):
            here = origin[at : at + len(line) + 1]
            at += len(line) + 1
            number = here[0][0] if here else 0
            if numbered:
                while len(lines) + 1 < number:  # of the kernels that were left out
                    places.append((len(lines) + 1, ()))
                    lines.append("")
            elif not line.strip() and number not in self._verbatim:
                continue
            lines.append(line if number in self._verbatim else line.rstrip())
            places.append((number, tuple(column for _, column in here)))
        return Unit("\n".join(lines) + "\n", tuple(kernels), tuple(places))


def read(source: str) -> Cell:
    """Take a cell apart."""
    pieces = list(_pieces(source))
    # A comment is one blank to C++, also one that spans lines.
    texts = [" " if kind == "comment" else source[a:b] for a, b, kind in pieces]
    code = "".join(
        re.sub(r"[^\n]", " ", text) if kind == "literal" else text
        for text, (_, _, kind) in zip(texts, pieces, strict=True)
    )
    text = "".join(texts)
    kernels = definitions.find(text, code)
    separable = kernels is not None and _separable(text, kernels)
    return Cell(text, kernels or (), separable, _origin(source, pieces), _verbatim(source, pieces))


def _pieces(source: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, "code" or "literal" or "comment") from the first character to the last."""
    at = 0
    for match in _TOKEN.finditer(source):
        yield at, match.start(), "code"
        yield match.start(), match.end(), "literal" if match["comment"] is None else "comment"
        at = match.end()
    yield at, len(source), "code"


def _origin(source: str, pieces: Sequence[tuple[int, int, str]]) -> tuple[tuple[int, int], ...]:
    starts = [0, *(match.end() for match in re.finditer("\n", source))]
    offsets = (
        offset
        for start, end, kind in pieces
        for offset in ((start,) if kind == "comment" else range(start, end))
    )
    lines = ((bisect_right(starts, offset), offset) for offset in offsets)
    return tuple((line, offset - starts[line - 1] + 1) for line, offset in lines)


def _verbatim(source: str, pieces: Sequence[tuple[int, int, str]]) -> frozenset[int]:
    """Return the lines of raw strings, and those that end a continued line, blank or not."""
    lines = {n for n, line in enumerate(source.split("\n"), 2) if line.endswith("\\")}
    for start, end, kind in pieces:
        if kind == "literal" and "\n" in source[start:end]:
            first = source.count("\n", 0, start) + 1
            lines.update(range(first, first + source.count("\n", start, end) + 1))
    return frozenset(lines)


def without_comments(source: str) -> str:
    """Return a header's text without its comments, line by line where it was."""

    def blanked(match: re.Match[str]) -> str:
        return match[0] if match["comment"] is None else " " + "\n" * match[0].count("\n")

    return "\n".join(line.rstrip() for line in _TOKEN.sub(blanked, source).split("\n"))


def _separable(text: str, kernels: Sequence[KernelText]) -> bool:
    """Say whether no kernel is mentioned outside of its own definition."""
    if len(kernels) < 2:
        return False
    for kernel in kernels:
        elsewhere = "".join(text[start:end] for start, end in _gaps(len(text), kernel.spans))
        if kernel.name in _WORD.findall(elsewhere):
            return False
    return True


def _gaps(length: int, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return what of a text of this length lies outside of the spans."""
    ends = [0, *(end for _, end in sorted(spans))]
    starts = [*(start for start, _ in sorted(spans)), length]
    return list(zip(ends, starts, strict=True))
