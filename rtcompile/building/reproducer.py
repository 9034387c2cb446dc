"""Writes a reproducer of a compiler's crash: a folder with all inputs and the command to repeat it."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any

from rtcompile._version import __version__
from rtcompile.cache.folder import Folder
from rtcompile.core.request import SearchDir
from rtcompile.core.units import CompileFailure
from rtcompile.storage import trusted
from rtcompile.storage.digest import content_digest

__all__ = ["advice", "write"]

_MOST_FOLDERS = 20
_MOST_BYTES = 64 << 20  # of a header
_OUR_NAMES = ("report.json", "README.txt", "run.sh", "reproduce.py", "include")

_ADVICE = {
    "crash": (
        "A crash is the compiler's own fault. Try the other compiler (backend='nvcc' or 'nvrtc') or "
        "another version of it; the folder is what NVIDIA needs to mend it."
    ),
    "memory": (
        "If the code is meant to need that much, raise memory_limit= or RTCOMPILE_MEMORY_LIMIT; "
        "otherwise look for templates or macros that grow exponentially."
    ),
    "timeout": (
        "If the code is meant to take that long, raise timeout= or RTCOMPILE_TIMEOUT; otherwise "
        "look for templates or nested function types that grow exponentially."
    ),
}


def advice(failure: CompileFailure) -> str:
    """Return what to do about a compiler's crash; ``""`` for a failure of another kind."""
    return _ADVICE.get(failure.kind, "")


def write(
    failure: CompileFailure,
    *,
    source: str,
    name: str,
    name_expressions: Sequence[str],
    compiler: str,
    search: Sequence[SearchDir],
    versions: Mapping[str, str],
    folder: Folder,
    memory: Mapping[str, str] = MappingProxyType({}),
) -> str | None:
    """Write a self-contained reproducer and return its path; None where it cannot be written.

    The oldest beyond twenty in `folder` are removed. `compiler` is the path of libnvrtc or of nvcc,
    and `memory` has the headers that were given as texts, by their paths.
    """
    key = content_digest(
        "\0".join((source, *failure.command, *name_expressions)).encode("utf-8", "surrogateescape")
    )
    home = f"{failure.backend}-{failure.kind}-{key[:12]}"
    # NVCC's command includes the compiler and the input.
    is_nvrtc = failure.backend == "nvrtc"
    options = failure.command if is_nvrtc else failure.command[1:]
    program = _program(name) if is_nvrtc else "kernel.cu"
    headers = {*(failure.trace or ()), *memory}
    places = _places([*(failure.trace or ()), *memory], search)
    report: dict[str, Any] = {
        "what": failure.log.splitlines()[0] if failure.log else failure.kind,
        "kind": failure.kind,
        "signal": failure.signal,
        "compiler": compiler,
        "program": program,
        "options": [_moved(option, places) for option in options],
        "name_expressions": list(name_expressions),
        "versions": dict(versions),
        "rtcompile": __version__,
        "system": platform.platform(),
    }
    texts = {
        program: source,
        "report.json": json.dumps(report, indent=2) + "\n",
        "README.txt": _readme(failure, report),
        "run.sh": _script(report, is_nvrtc=is_nvrtc),
    }
    if is_nvrtc:
        texts["reproduce.py"] = _REPRODUCE_NVRTC
    try:
        folder.prepare()
        with folder.opened("reproducers") as reproducers:
            with _new_folder(home, reproducers) as place:
                for path, target in places:
                    if path in memory:
                        _write_below(memory[path].encode(), target, place)
                    elif path in headers:
                        _copy(path, target, place)
                    else:
                        _make(target, place)
                for file, text in texts.items():
                    data = text.encode("utf-8", "surrogateescape")
                    _write(file, data, place, mode=0o700 if file == "run.sh" else 0o600)
            _forget_oldest(folder, keep=home)
    except (OSError, UnicodeEncodeError):
        return None
    return folder.file("reproducers", home)


def _program(name: str) -> str:
    """Return the source's file name: the program's own, if it is a plain file name."""
    base = os.path.basename(name)
    plain = re.fullmatch(r"\w[\w.+-]{0,99}", base, re.ASCII)
    return base if plain and base not in _OUR_NAMES else "kernel.cu"


def _places(trace: Sequence[str], search: Sequence[SearchDir]) -> list[tuple[str, str]]:
    """Return pairs of an original folder and its copy in the reproducer, the longest first.

    The tree of folders is kept, so ``#include "../x.h"`` leads to the same file. No name leads
    out of the reproducer, since the paths are normalised.
    """
    before = dict.fromkeys([*(directory.path.rstrip("/") for directory in search), *trace])
    places = [
        (path, "include" + os.path.normpath("/" + path.lstrip("/"))) for path in before if path
    ]
    return sorted(places, key=lambda pair: -len(pair[0]))


@contextmanager
def _new_folder(name: str, parent: int) -> Iterator[int]:
    """Yield a new folder, and rename it at the end, replacing an older one of the same name."""
    new, old = f".{name}-{os.getpid()}", f".{name}-{os.getpid()}.old"
    os.mkdir(new, 0o700, dir_fd=parent)
    try:
        descriptor = trusted.open_folder(new, dir_fd=parent)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        with suppress(FileNotFoundError):
            os.rename(name, old, src_dir_fd=parent, dst_dir_fd=parent)
        os.rename(new, name, src_dir_fd=parent, dst_dir_fd=parent)
    finally:
        for left in (new, old):
            _remove(left, parent)


def _below(names: Sequence[str], folder: int) -> int:
    """Return a descriptor of a folder below, made component by component without following links."""
    descriptor = os.dup(folder)
    for name in names:
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=descriptor)
        parent = descriptor
        try:
            descriptor = trusted.open_folder(name, dir_fd=parent)
        finally:
            os.close(parent)
    return descriptor


def _make(target: str, folder: int) -> None:
    with suppress(OSError):  # a copied header has the same name
        os.close(_below(target.split("/"), folder))


def _write_below(data: bytes, target: str, folder: int) -> None:
    *names, name = target.split("/")
    parent = _below(names, folder)
    try:
        _write(name, data, parent)
    finally:
        os.close(parent)


def _copy(path: str, target: str, folder: int) -> None:
    with suppress(OSError):  # it was removed, is no file, or a folder has the same name
        source, status = trusted.open_regular(path)
        try:
            data = trusted.contents(source, min(status.st_size, _MOST_BYTES))
        finally:
            os.close(source)
        _write_below(data, target, folder)


def _write(name: str, data: bytes, folder: int, mode: int = 0o600) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(name, flags, mode, dir_fd=folder), "wb") as file:
        file.write(data)


def _remove(name: str, parent: int) -> None:
    """Remove a folder with its contents, without following links."""
    try:
        folder = trusted.open_folder(name, dir_fd=parent)
    except OSError:  # it does not exist, or is a link
        with suppress(OSError):
            os.unlink(name, dir_fd=parent)
        return
    try:
        for entry in os.listdir(folder):
            try:
                os.unlink(entry, dir_fd=folder)
            except IsADirectoryError:
                _remove(entry, folder)
            except OSError:
                continue
    finally:
        os.close(folder)
    with suppress(OSError):
        os.rmdir(name, dir_fd=parent)


def _script(report: Mapping[str, Any], *, is_nvrtc: bool) -> str:
    """Return the shell script, with every word of the report quoted."""
    words = " ".join(shlex.quote(word) for word in report["options"])
    command = 'python3 reproduce.py "$compiler"' if is_nvrtc else f'"$compiler" {words}'
    return (
        '#!/bin/sh\ncd "$(dirname "$0")" || exit\n'
        f"compiler={shlex.quote(report['compiler'])}\n"
        f"[ $# = 0 ] || compiler=$1\nexec {command}\n"
    )


def _moved(option: str, places: Sequence[tuple[str, str]]) -> str:
    """Return an option with a folder in it replaced by its copy."""
    for before, after in places:
        if option.endswith(before):
            return option.removesuffix(before) + after
    return option


def _readme(failure: CompileFailure, report: Mapping[str, Any]) -> str:
    versions = {**report["versions"], "rtcompile": __version__, "system": report["system"]}
    lines = "".join(f"  {name} {version}\n" for name, version in sorted(versions.items()))
    return (
        f"{failure.log}\n\n{advice(failure)}\n\n"
        f"./run.sh compiles {report['program']} as rtcompile did, with the headers in include/;\n"
        f"./run.sh PATH does so with another {'libnvrtc' if failure.backend == 'nvrtc' else 'nvcc'}.\n\n"
        f"{lines}"
    )


def _forget_oldest(folder: Folder, keep: str) -> None:
    homes = [found for found in folder.listing("reproducers") if found[0] != keep]
    with folder.opened("reproducers") as reproducers:
        for name, _ in sorted(homes, key=lambda found: -found[1].st_mtime)[_MOST_FOLDERS - 1 :]:
            _remove(name, reproducers)


_REPRODUCE_NVRTC = '''\
"""Give NVRTC what killed it: reproduce.py [path of libnvrtc.so]. Needs nothing but Python."""

import ctypes
import glob
import json
import os
import sys

os.chdir(os.path.dirname(os.path.abspath(__file__)))
with open("report.json") as file:
    report = json.load(file)
path = sys.argv[1] if len(sys.argv) > 1 else report["compiler"]
for builtins in glob.glob(os.path.join(os.path.dirname(path), "libnvrtc-builtins.so*")):
    ctypes.CDLL(builtins)
nvrtc = ctypes.CDLL(path)

with open(report["program"], "rb") as file:
    source = file.read()
program = ctypes.c_void_p()
name = report["program"].encode()
nvrtc.nvrtcCreateProgram(ctypes.byref(program), source, name, 0, None, None)
for expression in report["name_expressions"]:
    nvrtc.nvrtcAddNameExpression(program, expression.encode())
options = [option.encode() for option in report["options"]]
result = nvrtc.nvrtcCompileProgram(
    program, len(options), (ctypes.c_char_p * len(options))(*options)
)
size = ctypes.c_size_t()
nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
log = ctypes.create_string_buffer(size.value or 1)
nvrtc.nvrtcGetProgramLog(program, log)
print(log.value.decode("utf-8", "replace"))
print("nvrtcCompileProgram returned", result)
'''
