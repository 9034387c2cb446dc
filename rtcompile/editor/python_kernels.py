"""Kernels that are strings in Python files: found without running the file, with their places.

What a file says of a string in literals is followed: names that are assigned once, f-strings of such
names, sums of strings. What it computes is left out.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

_MARKS = ("__global__", "__device__")
# Methods whose result has the lines of what they are called on, and nearly its text.
_KEEP_THE_TEXT = frozenset({"replace", "strip", "lstrip", "rstrip"})
_DEDENT = frozenset({"dedent", "cleandoc"})


class Piece(NamedTuple):
    """A part of a source: its first line in the Python file, and its text, line for line if possible."""

    line: int
    text: str


class KernelString(NamedTuple):
    """A string that holds CUDA C++."""

    name: str  # the variable that it is assigned to, or "kernel"
    pieces: tuple[Piece, ...]
    options: tuple[str, ...]  # what a call that takes this string gives as a literal ``options=``
    headers: tuple[tuple[str, str], ...]  # names and texts of a literal ``headers=``

    @property
    def line(self) -> int:
        """Where the kernel begins: the first line of its first piece that holds one."""
        return next(piece.line for piece in self.pieces if _is_kernel(piece.text))


def find(source: str) -> list[KernelString]:
    """Return a file's kernels: strings with ``__global__`` or ``__device__``, but no docstrings."""
    tree = ast.parse(source)
    file = _File(tree)
    found = []
    seen: set[int] = set()
    for name, expressions in file.assignments:
        whole = file.around.get(name)
        pieces = file.pieces(whole) if whole else [p for e in expressions for p in file.pieces(e)]
        if any(_is_kernel(piece.text) for piece in pieces):
            found.append(KernelString(name, tuple(pieces), *file.given(name)))
            seen.update(id(node) for e in expressions for node in ast.walk(e))
    for node in ast.walk(tree):
        if id(node) in file.passed_over or id(node) in seen:
            continue
        pieces = file.pieces(node) if isinstance(node, (ast.Constant, ast.JoinedStr)) else []
        if any(_is_kernel(piece.text) for piece in pieces):
            at = f"@{node.lineno}:{node.col_offset}"  # type: ignore[attr-defined]
            found.append(KernelString("kernel", tuple(pieces), *file.given(at)))
            seen.update(map(id, ast.walk(node)))
    return sorted(found, key=lambda kernel: kernel.line)


def _is_kernel(text: str) -> bool:
    return "{" in text and any(mark in text for mark in _MARKS)


class _File:
    """What a file's literals say."""

    def __init__(self, tree: ast.Module) -> None:
        self.passed_over = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        self.constants = _constants(tree)
        # Each assignment to a name, and what is added to it by += afterwards.
        self.assignments: list[tuple[str, list[ast.expr]]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                self.passed_over.update(id(part) for part in ast.walk(node) if part is not node)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.assignments.append((node.targets[0].id, [node.value]))
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                of = [parts for name, parts in self.assignments if name == node.target.id]
                if of and isinstance(node.op, ast.Add):
                    of[-1].append(node.value)
        counts = Counter(name for name, _ in self.assignments)
        self.values = {name: parts for name, parts in self.assignments if counts[name] == 1}
        self.around = self._sums(tree)
        self._given = _given(tree)

    def pieces(self, node: ast.AST, depth: int = 0) -> list[Piece]:
        """Return what is known of a string's text; nothing of what is computed."""
        if depth > 20:  # a name that is made of itself
            return []
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return [Piece(node.lineno, self._as_in_file(node, node.value))]
        if isinstance(node, ast.JoinedStr):
            text = self._formatted(node)
            return [] if text is None else [Piece(node.lineno, self._as_in_file(node, text))]
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            return [*self.pieces(node.left, depth + 1), *self.pieces(node.right, depth + 1)]
        if isinstance(node, ast.Name):
            parts = self.values.get(node.id, ())
            return [piece for part in parts for piece in self.pieces(part, depth + 1)]
        if isinstance(node, ast.Call):
            function = node.func
            name = getattr(function, "attr", getattr(function, "id", ""))
            if name in _DEDENT and node.args:
                return self.pieces(node.args[0], depth + 1)
            if name in _KEEP_THE_TEXT and isinstance(function, ast.Attribute):
                return self.pieces(function.value, depth + 1)
        return []

    def given(self, what: str) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Return the literal options and headers of a call that takes a string, by name or place."""
        options, headers = (self._value(node) for node in self._given.get(what, (None, None)))
        return tuple(_literals(options)), tuple(self._headers(headers))

    def _value(self, node: ast.expr | None) -> ast.expr | None:
        """Return what a name was assigned; another expression as it is."""
        if not isinstance(node, ast.Name):
            return node
        assigned = self.values.get(node.id)
        return assigned[0] if assigned else None

    def _sums(self, tree: ast.AST) -> dict[str, ast.expr]:
        """Return the sums that a kernel's variable is a part of, such as ``INCLUDES + KERNEL``."""
        found: dict[str, ast.expr] = {}
        inner: set[int] = set()
        for node in ast.walk(tree):  # the outer ones come first
            if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)):
                continue
            inner.update(id(part) for part in (node.left, node.right))
            if id(node) in inner:
                continue
            for part in ast.walk(node):
                name = part.id if isinstance(part, ast.Name) else ""
                own = [p for e in self.values.get(name, ()) for p in self.pieces(e)]
                if any(_is_kernel(piece.text) for piece in own):
                    found.setdefault(name, node)
        assigned = {id(e): name for name, of in self.values.items() for e in of}
        return {name: node for name, node in found.items() if id(node) not in assigned}

    def _formatted(self, node: ast.JoinedStr) -> str | None:
        text = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                text += str(part.value)
                continue
            value: Any = part.value if isinstance(part, ast.FormattedValue) else None
            if isinstance(value, ast.Name) and value.id in self.constants:
                text += str(self.constants[value.id])
            elif isinstance(value, ast.Constant):
                text += str(value.value)
            else:
                return None
            if part.format_spec is not None or part.conversion != -1:  # type: ignore[attr-defined]
                return None
        return text

    def _as_in_file(self, node: ast.expr, text: str) -> str:
        """Return the text with its lines where the file has them.

        Of a plain literal they are there already. One with ``\\n`` in it, or made of several, has other
        lines than the file: its text is given on one line where it can be, so no place is wrong by a
        line.
        """
        if text.count("\n") == (node.end_lineno or node.lineno) - node.lineno:
            return text
        if any(line.lstrip().startswith("#") or "//" in line for line in text.split("\n")):
            return text
        return text.replace("\n", " ")

    def _headers(self, node: ast.expr | None) -> Iterator[tuple[str, str]]:
        if not isinstance(node, ast.Dict):
            return
        for key, value in zip(node.keys, node.values, strict=True):
            pieces = self.pieces(value)
            if isinstance(key, ast.Constant) and isinstance(key.value, str) and pieces:
                yield key.value, "".join(piece.text for piece in pieces)


def _constants(tree: ast.Module) -> dict[str, Any]:
    """Return the names that the module gives a number or a string, once and for all."""
    found: dict[str, Any] = {}
    assigned: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            assigned[node.id] += 1
    for statement in tree.body:
        if not isinstance(statement, ast.Assign):
            continue
        (target, *_) = statement.targets
        pairs = [(target, statement.value)]
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            pairs = list(zip(target.elts, statement.value.elts, strict=False))
        for name, value in pairs:
            if isinstance(name, ast.Name) and isinstance(value, ast.Constant):
                found[name.id] = value.value
    return {name: value for name, value in found.items() if assigned[name] == 1}


def _given(tree: ast.AST) -> dict[str, tuple[ast.expr | None, ast.expr | None]]:
    """Return ``options=`` and ``headers=`` of calls, by the name or the place of the string beside them."""
    found: dict[str, tuple[ast.expr | None, ast.expr | None]] = {}
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        words = {keyword.arg: keyword.value for keyword in call.keywords}
        given = words.get("options"), words.get("headers")
        if given == (None, None):
            continue
        for value in (*call.args, *words.values()):
            if isinstance(value, (ast.Name, ast.BinOp)):  # a sum: the options are of all its parts
                for name in (part.id for part in ast.walk(value) if isinstance(part, ast.Name)):
                    before = found.get(name, (None, None))
                    found[name] = before[0] or given[0], before[1] or given[1]
            elif isinstance(value, (ast.Constant, ast.JoinedStr)):
                found.setdefault(f"@{value.lineno}:{value.col_offset}", given)
    return found


def _literals(node: ast.expr | None) -> Iterator[str]:
    """Yield the strings that are literals among options; what is computed is left out."""
    elements = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
    for element in elements:
        if isinstance(element, ast.Constant) and isinstance(element.value, str):
            yield element.value
