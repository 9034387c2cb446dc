"""Reads a cell of CUDA C++: the kernels that it defines, and the text for the compiler. Pure.

Kernels are found by the braces of the text, which gives their signatures and finds templates. The compiler gets
the cell without comments, so editing a comment leaves the build in the cache.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from rtcompile.request import cxx
from rtcompile.types import Diagnostic

# --- The kernels and variables that a text defines -------------------------------------------------

_STRUCTURE = re.compile(
    r"^[ \t\v\f]*(?:#|%:)[ \t\v\f]*(?P<directive>\w*)(?:\\\r?\n|[^\n])*|[{};]|\b__global__\b",
    re.MULTILINE,
)
_DIRECTIVE = re.compile(r"^[ \t\v\f]*(?:#|%:)(?:\\\r?\n|[^\n])*", re.MULTILINE)
# Before an opening brace; the "C" of extern was replaced by blanks.
_SCOPE = re.compile(r"\b(?:namespace\s*([\w:]*)|extern)\s*\Z")
_CALLED = re.compile(r"([A-Za-z_]\w*)\s*(?:<[^(){};]*>\s*)?\(")
_TEMPLATE = re.compile(r"\btemplate\s*<(.*)>", re.DOTALL)
_OPENED_NAMESPACE = re.compile(r"\bnamespace\s+([\w:]+)\s*\{")
_CONSTANT_LINE = re.compile(r"^\s*#\s*include\b|\bconst(?:expr)?\b")


@dataclass(frozen=True, slots=True)
class KernelText:
    """The definition of a kernel in a text."""

    name: str
    qualified: str  # with its namespaces
    parameters: str  # the text between its parentheses
    template: tuple[str, ...] | None  # the names of its template parameters


def find(text: str, code: str) -> tuple[KernelText, ...]:
    """Return the kernels of a text without comments, the first of each name; `code` has blanks for literals."""
    found: dict[str, KernelText] = {}
    scopes: list[str | None] = []  # open braces: a namespace's name, None for others
    branches: list[list[str | None]] = []  # the scopes in which each open #if began
    begin = 0  # where the current declaration begins
    for match in _STRUCTURE.finditer(code):
        if match["directive"] is not None:
            _enter_branch(match["directive"], scopes, branches)
            begin = begin if code[begin : match.start()].strip() else match.end()
            continue
        if match[0] == "__global__":
            kernel = _definition(text, code, begin, match.end(), scopes)
            if kernel is not None:
                found.setdefault(kernel.name, kernel)
            continue
        if match[0] == "{":
            scope = _SCOPE.search(_DIRECTIVE.sub("", code[begin : match.start()]))
            scopes.append((scope[1] or "") if scope else None)
        elif match[0] == "}" and scopes:
            scopes.pop()
        begin = match.end()
    return tuple(found.values())


def _enter_branch(
    directive: str, scopes: list[str | None], branches: list[list[str | None]]
) -> None:
    """Start each branch of the preprocessor with the scopes that were open at its ``#if``."""
    if directive in ("if", "ifdef", "ifndef"):
        branches.append(scopes.copy())
    elif directive in ("else", "elif") and branches:
        scopes[:] = branches[-1]
    elif directive == "endif" and branches:
        branches.pop()


def _definition(
    text: str, code: str, begin: int, at: int, scopes: list[str | None]
) -> KernelText | None:
    """Return the kernel whose ``__global__`` ends at `at`; None for a declaration or a friend."""
    if None in scopes:
        return None
    called = _CALLED.search(code, at)
    while called is not None and called[1].startswith("__"):  # __launch_bounds__(…) and its like
        called = _CALLED.search(code, called.end() + len(cxx.enclosed(code, called.end() - 1)))
    if called is None or re.search(r"[{};]", code[at : called.start()]):
        return None
    closing = called.end() + len(cxx.enclosed(code, called.end() - 1))
    if code[closing + 1 :].lstrip()[:1] != "{":
        return None
    qualified = "::".join([*filter(None, scopes), called[1]])
    parameters = " ".join(text[called.end() : closing].split())
    return KernelText(called[1], qualified, parameters, _template_parameters(code[begin:at]))


def _template_parameters(declaration: str) -> tuple[str, ...] | None:
    match = _TEMPLATE.search(_DIRECTIVE.sub("", declaration))
    if match is None or not match[1].strip():
        return None  # it is not a template, or it is a specialisation
    words = (re.findall(r"\w+", piece.partition("=")[0]) for piece in cxx.split(match[1]))
    return tuple(found[-1] if found else "" for found in words)


def own_variables(variables: Iterable[str], text: str, kernels: Collection[str]) -> frozenset[str]:
    """Return those of a code's variables that its text defines and that kernels share and can change, by C++ name."""
    words: set[str] = set()
    for line in text.split("\n"):
        if not _CONSTANT_LINE.search(line):
            words.update(re.findall(r"[A-Za-z_]\w*", line))
    spaces = {part for name in _OPENED_NAMESPACE.findall(text) for part in name.split("::")}
    found = set()
    for name in variables:
        function, _, variable = name.rpartition("()::")
        *outer, own = (function or variable).split("::")
        defined = {own, variable} if function else {own}
        if defined <= words and spaces.issuperset(outer) and function not in kernels:
            found.add(name)
    return frozenset(found)


# --- The source for the compiler: the cell without comments and blank lines ------------------------

# In a longer cell only the symbols of the code name the kernels; templates are not bound.
_MOST_SEARCHED = 4 * cxx.MOST_READ

# The cell's number is not in the name, since the position of a cell must not change its key.
PROGRAM = "cell.cu"

# A source with one of these depends on its line numbers, which must not change.
_NUMBERED = re.compile(r"\b(?:__LINE__|assert|source_location)\b")
# Matches a line number in a message that refers to the message's own file, and one in a hint.
_AT_LINE = re.compile(r"(?<=\bat line )(\d{1,9})\b(?! of )")
_IN_HINT = re.compile(r"(?<=\b[Ll]ine )(\d{1,9})\b")


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell's code."""

    text: str  # as it was written
    source: str  # what the compiler reads
    kernels: tuple[KernelText, ...]
    # For each line of `source`: the line of the cell, and the offset in `text` of each character.
    _origins: tuple[tuple[int, list[int]], ...]

    def in_cell(self, diagnostic: Diagnostic) -> Diagnostic:
        """Return a diagnostic with lines and columns of the cell instead of those of `source`."""
        notes = tuple(self.in_cell(note) for note in diagnostic.notes)
        message = _AT_LINE.sub(self._line_in_cell, diagnostic.message)
        hint, cause = (
            _IN_HINT.sub(self._line_in_cell, each) for each in (diagnostic.hint, diagnostic.cause)
        )
        diagnostic = replace(diagnostic, message=message, hint=hint, cause=cause)
        if diagnostic.file != PROGRAM or not 0 < diagnostic.line <= len(self._origins):
            return replace(diagnostic, notes=notes)
        line, offsets = self._origins[diagnostic.line - 1]
        column = 0
        if 0 < diagnostic.column <= len(offsets):
            offset = offsets[diagnostic.column - 1]
            line, column = _line(self.text, offset), offset - self.text.rfind("\n", 0, offset)
        # The compiler's excerpt shows `source`. Without it, the cell's own line is shown.
        return replace(diagnostic, line=line, column=column, excerpt="", notes=notes)

    def _line_in_cell(self, match: re.Match[str]) -> str:
        number = int(match[1])
        known = 0 < number <= len(self._origins)
        return str(self._origins[number - 1][0]) if known else match[0]


def read(text: str, *, keep_lines: bool = False) -> Cell:
    """Return a cell without its comments; with `keep_lines` every line keeps its number."""
    if len(text) > cxx.MOST_READ:  # reading it would take longer than a time limit allows
        return Cell(text, text, find(text, text) if len(text) <= _MOST_SEARCHED else (), ())
    pieces = list(_pieces(text))
    # C++ replaces each comment by one blank, even one of several lines.
    texts = [" " if kind == "comment" else text[a:b] for a, b, kind in pieces]
    stripped = "".join(texts)
    code = "".join(
        re.sub(r"[^\n]", " ", piece) if kind == "literal" else piece
        for piece, (_, _, kind) in zip(texts, pieces, strict=True)
    )
    keep_lines = keep_lines or _NUMBERED.search(stripped) is not None
    kept = ((a,) if kind == "comment" else range(a, b) for a, b, kind in pieces)
    offsets = [*itertools.chain.from_iterable(kept), len(text)]
    verbatim = _verbatim(text, pieces)
    lines: list[str] = []
    origins: list[tuple[int, list[int]]] = []
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
            origins += [(len(origins) + 1 + i, []) for i in range(missing)]
        lines.append(line if number in verbatim else line.rstrip())
        origins.append((number, here))
    source = "\n".join(lines) + "\n"
    return Cell(text, source, find(stripped, code), tuple(origins))


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
    """Return the lines to keep even if blank: those in raw strings and after a backslash."""
    lines = {n for n, line in enumerate(source.split("\n"), 2) if line.endswith("\\")}
    for start, end, kind in pieces:
        if kind == "literal" and "\n" in source[start:end]:
            first = source.count("\n", 0, start) + 1
            lines.update(range(first, first + source.count("\n", start, end) + 1))
    return frozenset(lines)
