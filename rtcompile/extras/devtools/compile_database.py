"""The compile database that clangd reads, for a project's sources and the kernels in its Python files.

The text of a string is followed through literals: names that are assigned once, f-strings of such names,
sums of strings. Computed parts are left out.
"""

from __future__ import annotations

import ast
import json
import os
import re
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rtcompile.errors import InvalidRequest
from rtcompile.files import sealed
from rtcompile.request import options as compiler_options
from rtcompile.request.options import Options
from rtcompile.request.request import CompileRequest
from rtcompile.request.values import Arch

Search = Sequence[tuple[str, str]]  # label and path of each folder of headers

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
    options: tuple[str, ...]  # the literal ``options=`` of a call that takes this string
    headers: tuple[tuple[str, str], ...]  # names and texts of a literal ``headers=``

    @property
    def line(self) -> int:
        """Where the kernel begins: the first line of its first piece that contains one."""
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
    """The strings in a Python file's literals."""

    def __init__(self, tree: ast.Module) -> None:
        self.passed_over = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        self.constants = _constants(tree)
        # Each assignment to a name, with the expressions added to it by +=.
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
        """Return the known parts of a string's text, without computed ones."""
        if depth > 20:  # a name that refers to itself
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
        """Return the literal options and headers of a call that takes a string, by its name or position."""
        options, headers = (self._value(node) for node in self._given.get(what, (None, None)))
        return tuple(_literals(options)), tuple(self._headers(headers))

    def _value(self, node: ast.expr | None) -> ast.expr | None:
        """Return the expression that a name was assigned; other expressions unchanged."""
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

        A plain literal has them there. A literal with ``\\n`` in it, or a concatenation, has other lines
        than the file: its text is put on one line if possible, which keeps line numbers right.
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
    """Return the names that the module assigns a literal exactly once, and the values."""
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
    """Return ``options=`` and ``headers=`` of calls, by the name or position of the string argument."""
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
    """Yield the options that are string literals; computed ones are left out."""
    elements = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
    for element in elements:
        if isinstance(element, ast.Constant) and isinstance(element.value, str):
            yield element.value


# --- The compile database that clangd reads -------------------------------------------------------

FOLDER = ".rtcompile"  # the project's folder for kernels that are strings
_DATABASE = "compile_commands.json"
_CONFIGURATION = ".clangd"
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
# Clang knows fewer architectures than NVRTC. It parses for this one; a macro has the requested one.
_CLANGS = Arch(8, 0)


class Entry(NamedTuple):
    """A file of clangd's database: its path, its origin, and the compiler's options."""

    file: str
    origin: str
    options: tuple[str, ...]


def write(
    root: str, paths: Sequence[str], options: Sequence[str], arch: Arch, search: Search
) -> list[Entry]:
    """Write a project's ``compile_commands.json``, and a file for each kernel that is a string."""
    root = os.path.abspath(root)
    entries = []
    kept = _existing(os.path.join(root, _DATABASE))
    common = compiler_options.parse(options)
    try:
        looked_at = set()
        for path in dict.fromkeys(_files(paths)):
            looked_at.add(path)
            if path.endswith(_SOURCES):
                entries.append(Entry(path, path, _flags(common, arch, search)))
            else:
                entries += _of_python(path, root, common, arch, search)
        _write_database(root, entries, kept, looked_at)
        _configure(root)
    except OSError as error:
        raise InvalidRequest(f"{error.filename or root}: {error.strerror}") from None
    return entries


def _files(paths: Sequence[str]) -> Iterator[str]:
    for path in map(os.path.abspath, paths):
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


def _of_python(
    path: str, root: str, common: Options, arch: Arch, search: Search
) -> Iterator[Entry]:
    try:
        with tokenize.open(path) as file:  # in the encoding that the file declares
            source = file.read()
        kernels = find(source)
    except (SyntaxError, ValueError, RecursionError):
        return  # for example a template or a file for Python 2
    names: dict[str, int] = {}
    for kernel in kernels:
        count = names[kernel.name] = names.get(kernel.name, 0) + 1
        name = kernel.name if count == 1 else f"{kernel.name}{count}"
        relative = re.sub(r"[^\w.-]", "_", os.path.relpath(path, root))
        target = os.path.join(root, FOLDER, f"{relative}.{name}.cu")
        _publish(target, _text(path, kernel.pieces))
        own = common.merged(_parsed(kernel.options))
        flags = _flags(own, arch, search, path)
        if kernel.headers:
            folder = f"{target.removesuffix('.cu')}.headers"
            for header, text in _checked(kernel.headers):
                _publish(os.path.join(folder, header), text)
            flags = (*flags, f"-I{folder}")
        yield Entry(target, f"{path}:{kernel.line}", flags)


def _text(path: str, pieces: Sequence[Piece]) -> str:
    """Return the text of the pieces, each on the line where it begins in the Python file if possible."""
    texts = [piece.text.removesuffix("\n").split("\n") for piece in pieces]
    # A piece with more lines than in the file begins earlier, to end before the next one begins.
    begins, end = [], len(texts[-1]) + pieces[-1].line
    for piece, text in zip(pieces[::-1], texts[::-1], strict=True):
        end = min(piece.line, end - len(text))
        begins.append(end)
    # The first line names the Python file, for preprocessors and for `_origin`.
    lines = [_line(2, path)] if begins[-1] > 1 else []
    for piece, begin, text in zip(pieces, begins[::-1], texts, strict=True):
        if len(lines) < begin:
            lines += [""] * (begin - 1 - len(lines))
        else:  # in the file this piece is before the previous one
            lines.append(_line(piece.line, path))
        lines += text
    return "\n".join(lines) + "\n"


def _line(number: int, path: str) -> str:
    return f"#line {number} {json.dumps(path)}"


def _origin(file: str) -> str:
    """Return the Python file that a generated file was made from; "" if unknown."""
    try:
        with open(file, encoding="utf-8") as opened:
            first = opened.readline()
        origin = json.loads(first.removeprefix("#line 2 "))
    except (OSError, ValueError):
        return ""
    return origin if isinstance(origin, str) else ""


def _checked(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return headers as a build takes them; none if they are invalid."""
    try:
        return CompileRequest("", headers=headers).headers
    except InvalidRequest:
        return ()


def _parsed(options: Sequence[str]) -> Options:
    try:
        return compiler_options.parse(options)
    except InvalidRequest:  # invalid options, whose error the build reports
        return Options()


def _flags(options: Options, arch: Arch, search: Search, beside: str = "") -> tuple[str, ...]:
    """Return clang's options for those of NVRTC."""
    preludes = (os.path.join(path, "rtcompile", "clangd.h") for _, path in search)
    prelude = next(filter(os.path.isfile, preludes), "")
    std = options.get("std") or "c++17"
    return (
        "-xcuda",
        f"--cuda-gpu-arch={_CLANGS}",
        "--cuda-device-only",
        "-nocudainc",  # clang's own wrapper, which needs a toolkit that it knows
        "-nocudalib",
        f"-std={std}",
        "-Wno-unknown-cuda-version",
        "-Wno-builtin-macro-redefined",
        "-Wno-pragma-once-outside-header",
        "-Xclang",
        "-fcuda-allow-variadic-functions",
        "-ferror-limit=0",
        "-U__CUDA_ARCH__",
        f"-D__CUDA_ARCH__={arch.number * 10}",
        "-include",
        prelude,
        *(f"-{kind}{macro}" for kind, macro in options.macros),
        *(f"-I{os.path.abspath(directory)}" for directory in options.include_dirs),
        *([f"-I{os.path.dirname(beside)}"] if beside else []),
        # The host's C++ library is used instead of the shims for NVRTC.
        *(arg for label, path in search if label != "shims" for arg in ("-isystem", path)),
        *(arg for header in options.pre_includes for arg in ("-include", header)),
    )


def _existing(path: str) -> list[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{path} is no compile database: {error}") from None
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise InvalidRequest(f"{path} is no compile database: it is not a list of entries")
    return found


def _write_database(
    root: str, entries: Sequence[Entry], kept: list[dict[str, Any]], looked_at: set[str]
) -> None:
    ours = {entry.file for entry in entries}
    generated = os.path.join(root, FOLDER) + os.sep

    def is_kept(file: str) -> bool:
        if file in ours:
            return False
        origin = _origin(file) if file.startswith(generated) else ""
        return not file.startswith(generated) or (
            os.path.isfile(origin) and origin not in looked_at
        )

    others = [entry for entry in kept if is_kept(str(entry.get("file")))]
    new = [
        {"directory": root, "file": e.file, "arguments": ["clang++", *e.options, e.file]}
        for e in entries
    ]
    _publish(os.path.join(root, _DATABASE), json.dumps([*others, *new], indent=1) + "\n")


def _configure(root: str) -> None:
    """Add the errors to suppress to ``.clangd``, once; the file's other contents are kept."""
    path = os.path.join(root, _CONFIGURATION)
    try:
        with open(path, encoding="utf-8") as file:
            given = file.read()
    except FileNotFoundError:
        given = ""
    except ValueError as error:
        raise InvalidRequest(f"{path} is no text: {error}") from None
    # The user may have edited the section since it was added.
    if _SUPPRESSED.partition("\n")[0] not in given:
        _publish(path, f"{given.rstrip()}\n---\n{_SUPPRESSED}" if given.strip() else _SUPPRESSED)


def _publish(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    sealed.publish(path, text.encode(), durable=False, mode=0o666)
