"""The compile database that clangd reads, for a project's sources and the kernels in its Python files."""

from __future__ import annotations

import json
import os
import re
import tokenize
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rtcompile import toolkit
from rtcompile.cache import files
from rtcompile.core import options as compiler_options
from rtcompile.core.arch import Arch
from rtcompile.core.options import Options
from rtcompile.core.request import header_texts
from rtcompile.editor import python_kernels
from rtcompile.editor.python_kernels import Piece
from rtcompile.errors import InvalidRequest
from rtcompile.settings import Settings

FOLDER = ".rtcompile"  # of the project: the files of kernels that are strings
_DATABASE = "compile_commands.json"
_CONFIGURATION = ".clangd"
# Errors of clang's about what NVIDIA's compilers take: `__shared__ alignas(16) float x[4];`, launch bounds
# that a constexpr function computes, and a barrier in shared memory, whose constructor does not run.
_SUPPRESSED = """\
# Written by `rtcompile clangd`: what clang refuses and NVIDIA's compilers take.
If:
  PathMatch: .*\\.cuh?
Diagnostics:
  Suppress:
    - attribute_not_type_attr
    - attributes_not_allowed
    - attribute_argument_n_type
    - shared_var_init
"""
_NOT_THE_PROJECTS = frozenset({"site-packages", "node_modules", "__pycache__", "build", "dist"})
_SOURCES = (".cu", ".cuh")
# Clang knows fewer architectures than NVRTC: it parses for this one, and the macro says the one wanted.
_CLANGS = Arch(8, 0)


class Entry(NamedTuple):
    """A file of clangd's database: its path, the place it came from, and the compiler's options."""

    file: str
    origin: str
    options: tuple[str, ...]


def write(
    root: str, paths: Sequence[str], options: Sequence[str], arch: Arch, settings: Settings
) -> list[Entry]:
    """Write a project's ``compile_commands.json``, and a file for each kernel that is a string.

    Entries of other files that are already in one are kept. Code for `arch` is shown as active.
    """
    root = os.path.abspath(root)
    entries = []
    kept = _existing(os.path.join(root, _DATABASE))
    common = compiler_options.parse(options)
    try:
        looked_at = set()
        for path in dict.fromkeys(_files(paths)):
            looked_at.add(path)
            if path.endswith(_SOURCES):
                entries.append(Entry(path, path, _flags(common, arch, settings)))
            else:
                entries += _of_python(path, root, common, arch, settings)
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
                and name not in _NOT_THE_PROJECTS
                and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
            )
            found = [os.path.join(folder, name) for name in sorted(names)]
            # Regular files: a pipe would be waited for, and a link may lead nowhere.
            yield from (f for f in found if f.endswith((*_SOURCES, ".py")) and os.path.isfile(f))


def _of_python(
    path: str, root: str, common: Options, arch: Arch, settings: Settings
) -> Iterator[Entry]:
    try:
        with tokenize.open(path) as file:  # in the encoding that the file declares
            source = file.read()
        kernels = python_kernels.find(source)
    except (SyntaxError, ValueError, RecursionError):
        return  # a template, a Python 2 file: not for us to judge
    names: dict[str, int] = {}
    for kernel in kernels:
        count = names[kernel.name] = names.get(kernel.name, 0) + 1
        name = kernel.name if count == 1 else f"{kernel.name}{count}"
        relative = re.sub(r"[^\w.-]", "_", os.path.relpath(path, root))
        target = os.path.join(root, FOLDER, f"{relative}.{name}.cu")
        _publish(target, _text(path, kernel.pieces))
        own = common.merged(_parsed(kernel.options))
        flags = _flags(own, arch, settings, path)
        if kernel.headers:
            folder = f"{target.removesuffix('.cu')}.headers"
            for header, text in _checked(kernel.headers):
                _publish(os.path.join(folder, header), text)
            flags = (*flags, f"-I{folder}")
        yield Entry(target, f"{path}:{kernel.line}", flags)


def _text(path: str, pieces: Sequence[Piece]) -> str:
    """Return the pieces, each in the line where it begins in the Python file, where that is possible."""
    texts = [piece.text.removesuffix("\n").split("\n") for piece in pieces]
    # One with more lines than it has in the file ends before the next begins: it begins sooner.
    begins, end = [], len(texts[-1]) + pieces[-1].line
    for piece, text in zip(pieces[::-1], texts[::-1], strict=True):
        end = min(piece.line, end - len(text))
        begins.append(end)
    # The first line names the file, for whoever preprocesses it and for `_origin`.
    lines = [_line(2, path)] if begins[-1] > 1 else []
    for piece, begin, text in zip(pieces, begins[::-1], texts, strict=True):
        if len(lines) < begin:
            lines += [""] * (begin - 1 - len(lines))
        else:  # in the file it stands before what it follows here
            lines.append(_line(piece.line, path))
        lines += text
    return "\n".join(lines) + "\n"


def _line(number: int, path: str) -> str:
    return f"#line {number} {json.dumps(path)}"


def _origin(file: str) -> str:
    """Return the Python file that one of our files is of; ``""`` where it does not say it."""
    try:
        with open(file, encoding="utf-8") as opened:
            first = opened.readline()
        said = json.loads(first.removeprefix("#line 2 "))
    except (OSError, ValueError):
        return ""
    return said if isinstance(said, str) else ""


def _checked(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return headers as a build would take them; none where it would refuse them."""
    try:
        return header_texts(headers)
    except InvalidRequest:
        return ()


def _parsed(options: Sequence[str]) -> Options:
    try:
        return compiler_options.parse(options)
    except InvalidRequest:  # a part of them is computed; its build says what is wrong
        return Options()


def _flags(options: Options, arch: Arch, settings: Settings, beside: str = "") -> tuple[str, ...]:
    """Return clang's options for those of NVRTC."""
    search = toolkit.current(settings).search
    prelude = next(
        (
            file
            for directory in search
            if os.path.isfile(file := os.path.join(directory.path, "rtcompile", "clangd.h"))
        ),
        "",
    )
    std = options.std or "c++17"
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
        *(f"-{kind}{said}" for kind, said in options.macros),
        *(f"-I{os.path.abspath(directory)}" for directory in options.include_dirs),
        *([f"-I{os.path.dirname(beside)}"] if beside else []),
        # The host's C++ library is used, which the shims for NVRTC stand for.
        *(arg for d in search if d.label != "shims" for arg in ("-isystem", d.path)),
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

    def stays(file: str) -> bool:
        if file in ours:
            return False
        origin = _origin(file) if file.startswith(generated) else ""
        return not file.startswith(generated) or (
            os.path.isfile(origin) and origin not in looked_at
        )

    others = [entry for entry in kept if stays(str(entry.get("file")))]
    new = [
        {"directory": root, "file": e.file, "arguments": ["clang++", *e.options, e.file]}
        for e in entries
    ]
    _publish(os.path.join(root, _DATABASE), json.dumps([*others, *new], indent=1) + "\n")


def _configure(root: str) -> None:
    """Say in ``.clangd`` what it shall not report of CUDA, once; what else is in that file is kept."""
    path = os.path.join(root, _CONFIGURATION)
    try:
        with open(path, encoding="utf-8") as file:
            given = file.read()
    except FileNotFoundError:
        given = ""
    except ValueError as error:
        raise InvalidRequest(f"{path} is no text: {error}") from None
    if (
        _SUPPRESSED.partition("\n")[0] not in given
    ):  # what the user has made of it since is the user's
        _publish(path, f"{given.rstrip()}\n---\n{_SUPPRESSED}" if given.strip() else _SUPPRESSED)


def _publish(path: str, text: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    files.publish(path, text.encode(), durable=False, mode=0o666)
