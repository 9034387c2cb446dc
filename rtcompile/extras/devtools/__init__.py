"""The compile database that clangd reads, for a project's sources and the kernels in its Python files."""

from __future__ import annotations

import ast
import json
import os
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from rtcompile import CompileRequest, InvalidRequest
from rtcompile.files import sealed
from rtcompile.named import NamedTuple

# Returns clang's options for a kernel's own compiler options, and the Python file that it is in, or "".
Flags = Callable[[Sequence[str], str], Sequence[str]]

# --- Kernels that are strings in Python files -----------------------------------------------------

_MARKS = ("__global__", "__device__")
# Methods whose result has the same lines as the string, and nearly the same text.
_KEEP_THE_TEXT = frozenset({"replace", "strip", "lstrip", "rstrip"})
_DEDENT = frozenset({"dedent", "cleandoc"})


class Piece(NamedTuple):
    """A part of a source: its first line in the Python file, and its text, on the same lines if possible."""

    line: int
    text: str


class KernelString(NamedTuple):
    """A string that contains CUDA C++."""

    name: str  # the variable that it is assigned to, or "kernel"
    pieces: tuple[Piece, ...]
    # The literal ``options=`` and ``include_dirs=`` of a call that takes this string.
    options: tuple[str, ...]
    headers: tuple[tuple[str, str], ...]  # names and texts of a literal ``headers=``

    @property
    def line(self) -> int:
        """The line where the kernel begins: the first line of the first piece that contains a kernel."""
        return next(piece.line for piece in self.pieces if _is_kernel(piece))


def find(source: str) -> list[KernelString]:
    """Return a file's kernels: strings with ``__global__`` or ``__device__``, but no docstrings."""
    file = _File(ast.parse(source))
    return sorted(file.kernels(), key=lambda kernel: kernel.line)


def _is_kernel(piece: Piece) -> bool:
    return "{" in piece.text and any(mark in piece.text for mark in _MARKS)


_ARGUMENTS = ("options", "headers", "include_dirs")
_NOTHING = [None] * len(_ARGUMENTS)


class _File:
    """The strings in a Python file's literals: names assigned once, f-strings and sums, without computed parts."""

    def __init__(self, tree: ast.Module) -> None:
        self._nodes = list(ast.walk(tree))
        # Each assignment to a name, with the expressions added to it by +=.
        self._assignments: list[tuple[str, list[ast.expr]]] = []
        # Names that are assigned once, with these expressions; computed ones have none.
        self._values: dict[str, list[ast.expr]] = {}
        stores: Counter[str] = Counter()
        for node in self._nodes:
            if isinstance(node, ast.Assign):
                pairs = [(node.targets[0], node.value)]
                if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(node.targets[0].elts, node.value.elts, strict=False))
                for target, value in pairs:
                    if isinstance(target, ast.Name):
                        self._values[target.id] = [value]
                        self._assignments.append((target.id, self._values[target.id]))
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
                stores[node.target.id] -= 1
                if isinstance(node.op, ast.Add):
                    self._values.get(node.target.id, []).append(node.value)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                stores[node.id] += 1
        self._values = {name: of for name, of in self._values.items() if stores[name] == 1}

    def kernels(self) -> Iterator[KernelString]:
        """Yield the kernels: strings that are assigned to names first."""
        seen = {
            id(part)
            for node in self._nodes
            if isinstance(node, ast.JoinedStr)
            for part in ast.walk(node)
            if part is not node
        }
        seen |= {
            id(node.body[0].value)  # a docstring
            for node in self._nodes
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        sums, given = self._sums(), self._given()
        strings: list[tuple[str, str | int, list[ast.expr]]] = [
            (name, name, expressions) for name, expressions in self._assignments
        ]
        strings += [
            ("kernel", id(node), [node])
            for node in self._nodes
            if isinstance(node, (ast.Constant, ast.JoinedStr))
        ]
        for name, key, expressions in strings:
            if all(id(node) in seen for node in expressions):
                continue
            pieces = [p for e in [sums.get(name)] if e for p in self._pieces(e)]
            pieces = pieces or [p for e in expressions for p in self._pieces(e)]
            if any(map(_is_kernel, pieces)):
                options, headers, folders = map(self._value, given.get(key, _NOTHING))
                literals = [*_literals(options), *(f"-I{each}" for each in _literals(folders))]
                texts = tuple(self._headers(headers))
                yield KernelString(name, tuple(pieces), tuple(literals), texts)
                seen.update(id(node) for e in expressions for node in ast.walk(e))

    def _pieces(self, node: ast.AST, depth: int = 0) -> list[Piece]:
        """Return the known parts of a string's text, without computed ones."""
        if depth > 20:  # a name that refers to itself
            return []
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            text = self._text(node)
            return [] if text is None else [Piece(node.lineno, _as_in_file(node, text))]
        within: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            within = [node.left, node.right]
        elif isinstance(node, ast.Name):
            within = self._values.get(node.id, [])
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name in _DEDENT:
                within = node.args[:1]
            elif name in _KEEP_THE_TEXT and isinstance(node.func, ast.Attribute):
                within = [node.func.value]
        return [piece for part in within for piece in self._pieces(part, depth + 1)]

    def _text(self, node: ast.Constant | ast.JoinedStr) -> str | None:
        """Return the text of a literal; of an f-string, if its names have literal values."""
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        text = ""
        for part in node.values:
            value: ast.expr | None = part
            if isinstance(part, ast.FormattedValue):
                is_plain = part.format_spec is None and part.conversion == -1
                value = self._value(part.value) if is_plain else None
            if not isinstance(value, ast.Constant):
                return None
            text += str(value.value)
        return text

    def _value(self, node: ast.expr | None) -> ast.expr | None:
        """Return the expression that a name was assigned; other expressions unchanged."""
        if not isinstance(node, ast.Name):
            return node
        return next(iter(self._values.get(node.id, ())), None)

    def _sums(self) -> dict[str, ast.expr]:
        """Return the sums that a kernel's variable is a part of, such as ``INCLUDES + KERNEL``."""
        found: dict[str, ast.expr] = {}
        passed_over = {id(e) for expressions in self._values.values() for e in expressions}
        for node in self._nodes:  # the outer ones come first
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
                if id(node) not in passed_over:
                    for part in ast.walk(node):
                        if isinstance(part, ast.Name) and any(map(_is_kernel, self._pieces(part))):
                            found.setdefault(part.id, node)
                passed_over.update((id(node.left), id(node.right)))
        return found

    def _given(self) -> dict[str | int, list[ast.expr | None]]:
        """Return the `_ARGUMENTS` of calls, by the names or identity of their strings."""
        found: dict[str | int, list[ast.expr | None]] = {}
        for call in self._nodes:
            if not isinstance(call, ast.Call):
                continue
            words = {keyword.arg: keyword.value for keyword in call.keywords}
            given = [words.get(argument) for argument in _ARGUMENTS]
            for value in (*call.args, *words.values()) if any(given) else ():
                keys: list[str | int] = [id(value), *_names(value)]
                for key in keys:  # the options belong to all parts of a sum
                    both = zip(found.get(key, _NOTHING), given, strict=True)
                    found[key] = [before or now for before, now in both]
        return found

    def _headers(self, node: ast.expr | None) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                pieces = self._pieces(value)
                if isinstance(key, ast.Constant) and isinstance(key.value, str) and pieces:
                    yield key.value, "".join(piece.text for piece in pieces)


def _names(node: ast.expr) -> Iterator[str]:
    """Yield the names that a name or a sum consists of."""
    if isinstance(node, (ast.Name, ast.BinOp)):
        yield from (part.id for part in ast.walk(node) if isinstance(part, ast.Name))


def _as_in_file(node: ast.expr, text: str) -> str:
    """Return a literal's text with as many lines as the literal has in the file, if possible: as it is or on one."""
    if text.count("\n") == (node.end_lineno or node.lineno) - node.lineno:
        return text
    if any(line.lstrip().startswith("#") or "//" in line for line in text.split("\n")):
        return text
    return text.replace("\n", " ")


def _literals(node: ast.expr | None) -> Iterator[str]:
    """Yield the options that are string literals; computed ones are left out."""
    elements = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
    for element in elements:
        if isinstance(element, ast.Constant) and isinstance(element.value, str):
            yield element.value


# --- The compile database that clangd reads -------------------------------------------------------

FOLDER = ".rtcompile"  # the project's folder for kernels that are strings
# clang's errors for code that NVIDIA's compilers accept: `__shared__ alignas(16) float x[4];`, launch
# bounds that a constexpr function computes, and a barrier in shared memory with a constructor.
_SUPPRESSED = """\
# Written by `rtcompile clangd`: what clang rejects and NVIDIA's compilers accept.
If:
  PathMatch: .*\\.cuh?
Diagnostics:
  Suppress:
    - attribute_not_type_attr
    - attributes_not_allowed
    - attribute_argument_n_type
    - shared_var_init
"""
_SKIPPED_FOLDERS = frozenset({"site-packages", "node_modules", "__pycache__", "build", "dist"})
_SOURCES = (".cu", ".cuh")


class DatabaseEntry(NamedTuple):
    """A file of clangd's database: its path, its origin, and the compiler's options."""

    file: str
    origin: str
    options: tuple[str, ...]


def write(root: str, paths: Sequence[str], flags: Flags) -> list[DatabaseEntry]:
    """Write a project's ``compile_commands.json``, and a file for each kernel that is a string; paths are absolute."""
    database = os.path.join(root, "compile_commands.json")
    kept = _existing(database)
    try:
        looked_at = dict.fromkeys(_files(paths))
        entries = [entry for path in looked_at for entry in _of(path, root, flags)]
        generated = os.path.join(root, FOLDER) + os.sep
        ours = {entry.file for entry in entries}
        new = [
            {"directory": root, "file": e.file, "arguments": ["clang++", *e.options, e.file]}
            for e in entries
        ]
        for entry in kept:
            file = str(entry.get("file"))
            origin = _origin(file) if file.startswith(generated) else __file__
            if file not in ours and origin not in looked_at and os.path.isfile(origin):
                new.append(entry)
        _publish(database, json.dumps(new, indent=1) + "\n")
        configuration = os.path.join(root, ".clangd")
        given = sealed.read_text(configuration) if os.path.exists(configuration) else ""
        # Add the errors to suppress once: the user may have edited the section since it was added.
        if _SUPPRESSED.partition("\n")[0] not in given:
            text = f"{given.rstrip()}\n---\n{_SUPPRESSED}" if given.strip() else _SUPPRESSED
            _publish(configuration, text)
    except OSError as error:
        raise InvalidRequest(f"{error.filename or root}: {error.strerror}") from None
    return entries


def _files(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        if os.path.isfile(path):
            if not path.endswith((*_SOURCES, ".py")):
                raise InvalidRequest(f"{path}: neither CUDA C++ (.cu, .cuh) nor Python (.py)")
            yield path
        elif not os.path.isdir(path):
            raise InvalidRequest(f"{path}: there is no such file or folder")
        for folder, below, names in os.walk(path):
            below[:] = sorted(
                name
                for name in below
                if not name.startswith(".")
                and name not in _SKIPPED_FOLDERS
                and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
            )
            found = [os.path.join(folder, name) for name in sorted(names)]
            # Only regular files: reading a pipe would wait, and a link may be broken.
            yield from (f for f in found if f.endswith((*_SOURCES, ".py")) and os.path.isfile(f))


def _of(path: str, root: str, flags: Flags) -> Iterator[DatabaseEntry]:
    """Yield the entry of a source, or those of a Python file's kernels, which are written to files."""
    if path.endswith(_SOURCES):
        yield DatabaseEntry(path, path, (*flags((), ""),))
        return
    try:
        with tokenize.open(path) as file:  # in the encoding that the file declares
            kernels = find(file.read())
    except (SyntaxError, ValueError, RecursionError):
        return  # for example a template or a file for Python 2
    names: Counter[str] = Counter()
    relative = re.sub(r"[^\w.-]", "_", os.path.relpath(path, root))
    for kernel in kernels:
        names[kernel.name] += 1
        name = f"{kernel.name}{names[kernel.name] if names[kernel.name] > 1 else ''}"
        target = os.path.join(root, FOLDER, f"{relative}.{name}.cu")
        _publish(target, _lines(path, kernel.pieces))
        options = [*flags(kernel.options, path)]
        with suppress(InvalidRequest):  # invalid headers, whose error the build reports
            headers = CompileRequest("", headers=kernel.headers).headers
            folder = f"{target.removesuffix('.cu')}.headers"
            for header, text in headers:
                _publish(os.path.join(folder, header), text)
            options += [f"-I{folder}"] if headers else []
        yield DatabaseEntry(target, f"{path}:{kernel.line}", tuple(options))


def _lines(path: str, pieces: Sequence[Piece]) -> str:
    """Return the text of the pieces, each on the line where it begins in the Python file if possible."""
    texts = [piece.text.removesuffix("\n").split("\n") for piece in pieces]
    # A piece with more lines than in the file begins earlier, so it ends before the next one begins.
    begins, end = [], len(texts[-1]) + pieces[-1].line
    for piece, text in zip(pieces[::-1], texts[::-1], strict=True):
        end = min(piece.line, end - len(text))
        begins.append(end)
    # The first line names the Python file, for preprocessors and for `_origin`.
    lines = [f"#line 2 {json.dumps(path)}"] if begins[-1] > 1 else []
    for piece, begin, text in zip(pieces, begins[::-1], texts, strict=True):
        if len(lines) < begin:
            lines += [""] * (begin - 1 - len(lines))
        else:  # in the file this piece is before the previous one
            lines.append(f"#line {piece.line} {json.dumps(path)}")
        lines += text
    return "\n".join(lines) + "\n"


def _origin(file: str) -> str:
    """Return the Python file that a generated file was made from; "" if unknown."""
    try:
        with open(file, encoding="utf-8") as opened:
            return str(json.loads(opened.readline().removeprefix("#line 2 ")))
    except (OSError, ValueError):
        return ""


def _existing(path: str) -> list[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
            raise ValueError("it is not a list of entries")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path} is not a compile database: {error}") from None
    return found


def _publish(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    sealed.publish(path, text.encode(), durable=False, mode=0o666)
