"""Finds the declarations of a source that are marked ``__device__`` or ``__global__``. Pure.

NVRTC compiles every function as device code by default, NVCC one without a mark as host code. The
same line can so be an error for NVRTC and correct for NVCC.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rtcompile.core import cxx

_MARKS = (
    "__device__",
    "__global__",
    "__constant__",
    "__shared__",
    "__managed__",
    "__grid_constant__",
)
_SCOPE = re.compile(r"\b(?:namespace|class|struct|union|extern)\b")


def says_device(source: str, line: int, column: int = 0) -> bool:
    """Whether the declaration around a place (from 1) is marked for the device.

    The declaration is the function or variable whose text holds the place, inside any namespaces
    and classes. A macro of the source that expands to the mark counts as the mark. Without a column
    the first declaration that reaches the line is taken.
    """
    lines = source.split("\n")
    begin = sum(len(text) + 1 for text in lines[: line - 1])
    begin, end = (
        (begin + column - 1,) * 2 if column else (begin, begin + len(lines[line - 1 : line]))
    )
    marks = list(_MARKS)
    for directive in cxx.Text(source).directives():
        if directive.name == "define" and cxx.has_word(
            directive.body, ("__device__", "__global__")
        ):
            marks.append(cxx.word_at(directive.body, 0))
    for start, stop, head in _declarations(source):
        if start <= end and begin < stop:
            return cxx.has_word(head, marks)
    return False


def _declarations(source: str) -> Iterator[tuple[int, int, str]]:
    """Yield begin, end and text up to the body of what is declared outside functions."""
    code = cxx.blanked(source, literals=True, directives=True)
    start = depth = 0  # where the declaration begins; how many braces are open in it
    head = ""
    for match in re.finditer(r"[{};]", code):
        symbol, end = match[0], match.end()
        if symbol == "{":
            if depth == 0:
                head = code[start : match.start()]
                if _SCOPE.search(head) and "(" not in head:
                    start, head = end, ""
                    continue
            depth += 1
        elif symbol == "}" and depth:
            depth -= 1
        if depth == 0:
            yield start, end, head or code[start : match.start()]
            start, head = end, ""
