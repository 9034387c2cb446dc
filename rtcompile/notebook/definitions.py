"""Where a text of CUDA C++ defines its kernels, read from its braces and not by a compiler. Pure.

What is beyond this reading (kernels made by macros, braces in branches of the preprocessor) is said
to be so; nothing depends on an answer but how finely a cell is rebuilt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rtcompile.core.signature import split

__all__ = ["KernelText", "find"]

Span = tuple[int, int]

_DIRECTIVE = re.compile(r"^[ \t]*#[ \t]*(\w*)(?:\\\r?\n|[^\n])*", re.MULTILINE)
_STRUCTURE = re.compile(r"[{};]|\b__global__\b")
_NAMESPACE = re.compile(r"\bnamespace\s*([\w:]*)\s*\Z")
_EXTERN = re.compile(r"\bextern\s*\Z")  # its "C" is blanked
_CALLED = re.compile(r"([A-Za-z_]\w*)\s*(?:<[^(){};]*>\s*)?\(")
_TEMPLATE = re.compile(r"\btemplate\s*<(.*)>", re.DOTALL)
_BRACKETS = {"(": ")", "{": "}"}


@dataclass(frozen=True, slots=True)
class KernelText:
    """A kernel as a text defines it.

    Attributes
    ----------
    name, qualified : str
        Its name without and with its namespaces.
    parameters : str
        What stands between its parentheses.
    template : tuple of str or None
        The names of the template's parameters; None for a kernel that is no template.
    spans : tuple of (int, int)
        Its definitions: one, or several of overloads and specialisations.
    """

    name: str
    qualified: str
    parameters: str
    template: tuple[str, ...] | None
    spans: tuple[Span, ...]


def find(text: str, code: str) -> tuple[KernelText, ...] | None:
    """Return the kernels that a text defines, in order; None if it is beyond this reading.

    Parameters
    ----------
    text : str
        Without comments.
    code : str
        The same with the contents of its string and character literals blanked.
    """
    directives = [match.span() for match in _DIRECTIVE.finditer(code)]
    for start, end in directives:
        code = code[:start] + re.sub(r"[^\n]", " ", code[start:end]) + code[end:]
    try:
        return _Reader(text, code, directives).read()
    except _BeyondError:
        return None


class _BeyondError(Exception):
    """The text is beyond this reading."""


class _Reader:
    def __init__(self, text: str, code: str, directives: Sequence[Span]) -> None:
        self._text = text
        self._code = code
        self._directives = directives
        self._found: dict[str, KernelText] = {}
        self._scopes: list[str | None] = []  # a namespace's name; None for all other braces

    def read(self) -> tuple[KernelText, ...]:
        begin = 0  # of what is being declared
        for match in _STRUCTURE.finditer(self._code):
            if match.start() < begin:
                continue  # in a kernel's body
            if match[0] == "__global__":
                begin = self._definition(begin, match.start(), match.end()) or begin
                continue
            if match[0] == "{":
                self._scopes.append(self._scope(self._code[begin : match.start()]))
            elif match[0] == "}":
                if not self._scopes:
                    raise _BeyondError
                self._scopes.pop()
            begin = match.end()
        if self._scopes:
            raise _BeyondError
        return tuple(self._found.values())

    @staticmethod
    def _scope(before: str) -> str | None:
        namespace = _NAMESPACE.search(before)
        if namespace is not None:
            return namespace[1]
        return "" if _EXTERN.search(before) else None

    def _definition(self, begin: int, annotation: int, at: int) -> int | None:
        """Note the kernel whose ``__global__`` is at `annotation`; return where its body ends.

        None for what is a declaration only, and stays where it is.
        """
        if None in self._scopes:
            return None  # a friend
        name, opening = self._name(at)
        closing = self._closing(opening)
        behind = re.compile(r"\s*(.)", re.DOTALL).match(self._code, closing)
        if behind is not None and behind[1] == ";":
            return None
        if behind is None or behind[1] != "{":
            raise _BeyondError
        start, end = self._start(begin, annotation), self._closing(behind.end() - 1)
        self._check_branches(start, end)
        known = self._found.get(name)
        if known is None:
            known = KernelText(
                name,
                "::".join([*filter(None, self._scopes), name]),
                " ".join(self._text[opening + 1 : closing - 1].split()),
                _template_parameters(self._code[start:annotation]),
                (),
            )
        self._found[name] = replace(known, spans=(*known.spans, (start, end)))
        return end

    def _name(self, at: int) -> tuple[str, int]:
        """Return the kernel's name and where its parameters open."""
        while True:
            match = _CALLED.search(self._code, at)
            if match is None or re.search(r"[{};]", self._code[at : match.start()]):
                raise _BeyondError
            if not match[1].startswith("__"):
                return match[1], match.end() - 1
            at = self._closing(match.end() - 1)  # __launch_bounds__(…) and its like

    def _closing(self, opening: int) -> int:
        """Return the place behind the bracket that closes the one at `opening`."""
        bracket = self._code[opening]
        depth = 0
        for match in re.compile(rf"[{bracket}{_BRACKETS[bracket]}]").finditer(self._code, opening):
            depth += 1 if match[0] == bracket else -1
            if depth == 0:
                return match.end()
        raise _BeyondError

    def _start(self, begin: int, annotation: int) -> int:
        """Return where the declaration begins that was being read since `begin`."""
        ends = [end for _, end in self._directives if begin < end <= annotation]
        if ends and self._code[begin : ends[-1]].strip():
            raise _BeyondError  # a directive between `template <…>` and the rest
        begin = max([begin, *ends])
        return begin + len(self._code[begin:]) - len(self._code[begin:].lstrip())

    def _check_branches(self, start: int, end: int) -> None:
        """Raise if a branch of the preprocessor begins in the definition and not ends there."""
        depth = 0
        for at, to in self._directives:
            match = _DIRECTIVE.match(self._text[at:to])
            if not start <= at < end or match is None:
                continue
            depth += match[1] in ("if", "ifdef", "ifndef")
            depth -= match[1] == "endif"
            if depth < 0 or (depth == 0 and match[1] in ("else", "elif")):
                raise _BeyondError
        if depth:
            raise _BeyondError


def _template_parameters(declaration: str) -> tuple[str, ...] | None:
    match = _TEMPLATE.search(declaration)
    if match is None or not match[1].strip():
        return None  # no template, or a specialisation
    words = (re.findall(r"\w+", piece.partition("=")[0]) for piece in split(match[1]))
    return tuple(found[-1] if found else "" for found in words)
