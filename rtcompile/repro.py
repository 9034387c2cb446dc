"""A compiler died: everything that made it die goes into one folder, with the command that does it again."""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rtcompile._version import __version__
from rtcompile.core.includes import place
from rtcompile.core.key import content_digest
from rtcompile.core.request import SearchDir
from rtcompile.core.units import CompileFailure

__all__ = ["advice", "write"]

_MOST_FOLDERS = 20

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
    """Return what to do about a compiler that died; ``""`` for a failure of another kind."""
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
    folder: str,
) -> str | None:
    """Write a self-contained reproducer and return its path; None where it cannot be written.

    Parameters
    ----------
    failure : CompileFailure
        The death, with the command and the headers read.
    source, name : str
        The translation unit and the name that the compiler knew it by.
    name_expressions : sequence of str
        The names that were to be lowered.
    compiler : str
        Path of libnvrtc or of nvcc.
    search : sequence of SearchDir
        The search path; what was read from it is copied.
    versions : mapping
        Part of the toolchain to its version.
    folder : str
        Where reproducers are kept; the oldest beyond twenty are removed.
    """
    key = content_digest("\0".join((source, *failure.command, *name_expressions)).encode())
    home = os.path.join(folder, f"{failure.backend}-{failure.kind}-{key[:12]}")
    try:
        os.makedirs(home, 0o700, exist_ok=True)
        places = _copy_headers(failure.trace or (), search, home)
        # NVCC's command names its compiler and its input too.
        is_nvrtc = failure.backend == "nvrtc"
        options = failure.command if is_nvrtc else failure.command[1:]
        file = (os.path.basename(name) if is_nvrtc else "") or "kernel.cu"
        report: dict[str, Any] = {
            "what": failure.log.splitlines()[0] if failure.log else failure.kind,
            "kind": failure.kind,
            "signal": failure.signal,
            "compiler": compiler,
            "program": file,
            "options": [_moved(option, places) for option in options],
            "name_expressions": list(name_expressions),
            "versions": dict(versions),
            "rtcompile": __version__,
            "system": platform.platform(),
        }
        _write(home, file, source)
        _write(home, "report.json", json.dumps(report, indent=2) + "\n")
        _write(home, "README.txt", _readme(failure, report))
        if is_nvrtc:
            _write(home, "reproduce.py", _REPRODUCE_NVRTC)
            command = f'exec python3 reproduce.py "${{1:-{compiler}}}"'
        else:
            words = " ".join(shlex.quote(word) for word in report["options"])
            command = f'exec "${{1:-{compiler}}}" {words}'
        _write(home, "run.sh", f'#!/bin/sh\ncd "$(dirname "$0")" || exit\n{command}\n')
        os.chmod(os.path.join(home, "run.sh"), 0o700)
        _forget_oldest(folder, keep=home)
    except OSError:
        return None
    return home


def _copy_headers(
    trace: Sequence[str], search: Sequence[SearchDir], home: str
) -> list[tuple[str, str]]:
    """Copy the headers that were read; return (place before, place in the folder), longest first."""
    places = [
        (directory.path.rstrip("/"), os.path.join("include", f"{index:02}-{directory.label}"))
        for index, directory in enumerate(search)
    ]
    for path in trace:
        index, relative = place(path, search)
        if index >= 0:
            target = os.path.join(places[index][1], relative)
        else:
            target = os.path.join("include", "elsewhere", path.lstrip("/"))
            places.append((path, target))
        copy = os.path.join(home, target)
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        with suppress(OSError):  # gone since
            shutil.copyfile(path, copy)
    for _, target in places:
        if not os.path.exists(os.path.join(home, target)):
            os.makedirs(os.path.join(home, target), exist_ok=True)
    return sorted(places, key=lambda pair: -len(pair[0]))


def _moved(option: str, places: Sequence[tuple[str, str]]) -> str:
    """Return an option with the place it names replaced by the copy's."""
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


def _write(home: str, name: str, text: str) -> None:
    with open(os.path.join(home, name), "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


def _forget_oldest(folder: str, keep: str) -> None:
    homes = [entry.path for entry in os.scandir(folder) if entry.path != keep]
    for path in sorted(homes, key=os.path.getmtime, reverse=True)[_MOST_FOLDERS - 1 :]:
        shutil.rmtree(path, ignore_errors=True)


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
