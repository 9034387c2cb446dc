"""Kernels that are strings in Python files: found without running the file, with their places."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["KernelString", "find"]

_MARKS = ("__global__", "__device__")


class KernelString(NamedTuple):
    """A string that holds CUDA C++.

    Attributes
    ----------
    name : str
        The variable that it is assigned to, or ``"kernel"``.
    line : int
        The line of the Python file in which the string's text begins.
    text : str
        The source, with as many lines as the literal has in the file, so that lines agree.
    options : tuple of str
        What a call that takes this string gives as a literal ``options=``.
    """

    name: str
    line: int
    text: str
    options: tuple[str, ...]


def find(source: str) -> list[KernelString]:
    """Return the kernels of a Python file; raise SyntaxError or ValueError if it is none.

    A kernel is a literal with ``__global__`` or ``__device__`` and a brace in it, which is no docstring.
    An f-string is not looked at: what it will say is not known.
    """
    tree = ast.parse(source)
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    within = {
        id(value)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for value in ast.walk(node)
    }
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names[id(node.value)] = node.targets[0].id
    options = _options(tree)
    found = []
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
            and id(node) not in within
            and "{" in node.value
            and any(mark in node.value for mark in _MARKS)
        ):
            name = names.get(id(node), "")
            given = options.get(name) or options.get(f"@{node.lineno}:{node.col_offset}") or ()
            text = _as_in_file(node, source)
            found.append(KernelString(name or "kernel", node.lineno, text, given))
    return sorted(found, key=lambda kernel: kernel.line)


def _as_in_file(node: ast.Constant, source: str) -> str:
    """Return the text with its lines where the file has them.

    Of a plain literal they are there already. One with ``\\n`` in it, or made of several, has other lines
    than the file: its text is given on one line where it can be, so that no place is wrong by a line.
    """
    text = str(node.value)
    segment = ast.get_source_segment(source, node) or ""
    if text.count("\n") == segment.count("\n"):
        return text
    if any(line.lstrip().startswith("#") or "//" in line for line in text.split("\n")):
        return text
    return text.replace("\n", " ")


def _options(tree: ast.AST) -> dict[str, tuple[str, ...]]:
    """Return the literal options of calls, by the name or the place of the string beside them."""
    found: dict[str, tuple[str, ...]] = {}
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        given = next((k.value for k in call.keywords if k.arg == "options"), None)
        options = tuple(_literals(given)) if given is not None else ()
        for value in (*call.args, *(keyword.value for keyword in call.keywords)):
            if options and isinstance(value, ast.Name):
                found.setdefault(value.id, options)
            elif options and isinstance(value, ast.Constant):
                found.setdefault(f"@{value.lineno}:{value.col_offset}", options)
    return found


def _literals(node: ast.expr) -> Iterator[str]:
    """Yield the strings that are literals among options; what is computed is left out."""
    elements = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
    for element in elements:
        if isinstance(element, ast.Constant) and isinstance(element.value, str):
            yield element.value
