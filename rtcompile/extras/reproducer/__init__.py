"""Writes a reproducer of a compiler's crash: the input, the headers, and a script that runs the compiler as rtcompile did."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from rtcompile import __version__
from rtcompile.files import sealed
from rtcompile.files.sealed import content_digest
from rtcompile.store.folder import Folder

_MOST_FOLDERS = 20
# Of the compiler's input: writing a longer one would exceed a caller's time limit.
_MOST_BYTES = 16 << 20
# The compilers that are libraries: a program that calls them is beside this file.
_LIBRARIES = ("nvrtc", "nvjitlink")
_OUR_NAMES = ("report.json", "README.txt", "run.sh", "reproduce.py", "include")


def write_reproducer(
    failure: Any, plan: Any, memory: Mapping[str, str], advice: str, folder: Folder
) -> str | None:
    """Write a self-contained reproducer, remove the oldest, and return its path; None if it is not possible.

    `memory` are the build's headers in memory, by their virtual paths.
    """
    request, toolchain = plan.request, plan.toolchain
    if max(len(request.source), *map(len, failure.inputs.values()), 0) > _MOST_BYTES:
        return None
    expressions = request.name_expressions
    words = (request.source_digest, *failure.command, *expressions)
    key = content_digest("\0".join(words).encode("utf-8", "surrogateescape"))
    home = f"{failure.backend}-{failure.kind}-{key[:12]}"
    # NVCC's command includes the compiler and the input, nvJitLink's all inputs.
    options = failure.command if failure.backend == "nvrtc" else failure.command[1:]
    compiler = getattr(toolchain, failure.backend)
    program = _program(plan.key_inputs.name)
    # NVCC gets other text than the request's: with a name, and with markers of name expressions. nvJitLink
    # gets code.
    inputs = failure.inputs or {program: request.source.encode("utf-8", "surrogateescape")}
    program = next(iter(inputs))
    read = {*(failure.trace or ()), *memory}
    # Original folders and files to their copies in the reproducer, the longest first.
    before = dict.fromkeys([*(each.path.rstrip("/") for each in plan.search), *read])
    copies = [
        (path, "include" + os.path.normpath("/" + path.lstrip("/")))
        for path in sorted(filter(None, before), key=len, reverse=True)
    ]
    report: dict[str, Any] = {
        "what": failure.log.splitlines()[0] if failure.log else failure.kind,
        "kind": failure.kind,
        "signal": failure.signal,
        "compiler": compiler.path if compiler is not None else failure.backend,
        "program": program,
        "options": [_moved(option, copies) for option in options],
        "inputs": list(inputs),
        "name_expressions": list(expressions),
        "versions": dict(toolchain.versions),
        "rtcompile": __version__,
        "system": platform.platform(),
    }
    texts = {
        "report.json": json.dumps(report, indent=2) + "\n",
        "README.txt": _readme(failure.log, advice, report),
        "run.sh": _script(report, calls_library=failure.backend in _LIBRARIES),
    }
    try:
        if failure.backend in _LIBRARIES:
            script = os.path.join(os.path.dirname(__file__), f"reproduce_{failure.backend}.txt")
            with open(script, encoding="utf-8") as file:
                texts["reproduce.py"] = file.read()
        folder.prepare()
        with folder.open("reproducers") as reproducers:
            # By descriptor, since other users may be able to replace the cache directory.
            parent = f"/proc/self/fd/{reproducers.descriptor}"
            with tempfile.TemporaryDirectory(prefix=".", dir=parent) as top:
                for path, target in copies:
                    with suppress(OSError):  # it was removed, or another path has the same name
                        if path in memory:
                            _write(f"{top}/{target}", memory[path].encode())
                        elif path in read:
                            _write(f"{top}/{target}", sealed.read_given(path))
                        else:
                            os.makedirs(f"{top}/{target}", exist_ok=True)
                for file_name, data in inputs.items():
                    _write(f"{top}/{file_name}", data)
                for file_name, text in texts.items():
                    _write(f"{top}/{file_name}", text.encode("utf-8", "surrogateescape"))
                os.chmod(f"{top}/run.sh", 0o700)
                _remove(f"{parent}/{home}")  # an older one
                os.rename(top, f"{parent}/{home}")
            others = [found for found in folder.listing("reproducers") if found[0] != home]
            others.sort(key=lambda found: -found[1].st_mtime)
            for name, _ in others[_MOST_FOLDERS - 1 :]:
                _remove(f"{parent}/{name}")
    except (OSError, UnicodeEncodeError):
        return None
    return folder.file("reproducers", home)


def _program(name: str) -> str:
    """Return the source's file name: the program's own, if it is a plain file name."""
    base = os.path.basename(name)
    plain = re.fullmatch(r"\w[\w.+-]{0,99}", base, re.ASCII)
    return base if plain and base not in _OUR_NAMES else "kernel.cu"


def _write(path: str, data: bytes) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "xb") as file:
        file.write(data)


def _remove(path: str) -> None:
    sealed.discard(path)  # if it is a link, it is removed and not followed
    shutil.rmtree(path, ignore_errors=True)


def _script(report: Mapping[str, Any], *, calls_library: bool) -> str:
    """Return the shell script, with every word of the report quoted."""
    words = " ".join(shlex.quote(word) for word in report["options"])
    command = 'python3 reproduce.py "$compiler"' if calls_library else f'"$compiler" {words}'
    return (
        '#!/bin/sh\ncd "$(dirname "$0")" || exit\n'
        f"compiler={shlex.quote(report['compiler'])}\n[ $# = 0 ] || compiler=$1\nexec {command}\n"
    )


def _moved(option: str, copies: Sequence[tuple[str, str]]) -> str:
    """Return an option with a folder in it replaced by its copy."""
    for before, after in copies:
        if option.endswith(before):
            return option.removesuffix(before) + after
    return option


def _readme(log: str, advice: str, report: Mapping[str, Any]) -> str:
    versions = {**report["versions"], "rtcompile": __version__, "system": report["system"]}
    lines = "".join(f"  {name} {version}\n" for name, version in sorted(versions.items()))
    return (
        f"{log}\n\n{advice}\n\n"
        f"./run.sh compiles {' '.join(report['inputs'])} as rtcompile did, with the headers in include/;\n"
        f"./run.sh PATH does so with another {os.path.basename(report['compiler'])}.\n\n"
        f"{lines}"
    )
