"""Finds the kernels that a cell of CUDA C++ defines, by the braces of its text. Pure.

The text has what machine code lacks: the kernels' signatures, and the templates.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from rtcompile.request import cxx

# The source's name. The cell's number is not in it, since the position of a cell must not change its key.
PROGRAM = "cell.cu"

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


def find(source: str) -> tuple[KernelText, ...]:
    """Return the kernels of a source, the first of each name; none if it takes too long to read."""
    source = cxx.readable(source)
    text, code = cxx.blanked(source), cxx.blanked(source, literals=True)
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


def own_variables(
    variables: Iterable[str], source: str, kernels: Collection[str]
) -> frozenset[str]:
    """Return those of a code's variables that its source defines and that kernels share and can change, by C++ name."""
    text, words = cxx.blanked(source), set[str]()
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
