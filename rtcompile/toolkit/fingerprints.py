"""Identifies the build of a program or library from its files, without running or loading it.

No path and no time goes into the identity, so two machines with the same packages agree on it. It
is computed with the toolchain and remembered until the stat of a file changes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from rtcompile.core.key import digest, field
from rtcompile.storage.digest import content_digest
from rtcompile.toolkit.model import Library, Program

# Wrappers, profiles and drivers are read whole. Of the compilers themselves (tens of megabytes) the
# size and both ends are read, where the build's number and the table of sections are.
_READ_WHOLE = 4 << 20
_END = 64 << 10

# The files that NVCC runs and reads besides headers, below the folder that holds its `bin`.
_NVCC_FILES = (
    "bin/nvcc",
    "bin/nvcc.profile",
    "bin/cudafe++",
    "bin/cicc",
    "bin/ptxas",
    "bin/nvlink",
    "bin/fatbinary",
    "nvvm/bin/cicc",
    "nvvm/lib64/libnvvm.so",
    "nvvm/libdevice/libdevice.10.bc",
    "lib/libcudadevrt.a",
    "lib64/libcudadevrt.a",
)
# `exec /usr/local/cuda/bin/nvcc "$@"`, after comments.
_SCRIPT = re.compile(rb"""(?:\s*\#[^\n]*\n)*\s*(?:exec\s+)?["']?(/[^"'\s]+)["']?\s+"\$@"\s*""")
# The programs that NVCC runs in a folder given by -ccbin.
_HOST_COMPILERS = ("gcc", "g++", "clang")


def of_file(path: str) -> str:
    """Return an identity of the file's contents, ``""`` if it cannot be read."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= _READ_WHOLE:
                return content_digest(file.read())[:16]
            first = file.read(_END)
            file.seek(-_END, os.SEEK_END)
            return content_digest(b"%d:%s%s" % (size, first, file.read()))[:16]
    except OSError:
        return ""


def files_of_nvcc(program: Program) -> list[str]:
    """Return the files that decide what this NVCC makes of preprocessed source."""
    return list(dict.fromkeys([program.path, program.binary, *_files_below(program).values()]))


def of_nvcc(program: Program, host_compiler: str | None) -> str:
    """Return NVCC's build and its host compiler's, ``"13.0.88 2f1c…; g++ 90ab…"``."""
    files = _files_below(program)
    if not _only_leads_to(program.path, program.binary):
        files["wrapper"] = program.path
    own = _together(files.items())
    host = of_host_compiler(host_compiler) if host_compiler else ""
    return f"{program.version} {own}" + (f"; {host}" if host else "")


def of_host_compiler(path: str) -> str:
    """Return the build of the host compiler at `path`, a program or the folder of one."""
    name = os.path.basename(path.rstrip("/"))
    if not os.path.isdir(path):
        return f"{name} {of_file(path)}"
    return f"{name}/ " + _together((each, os.path.join(path, each)) for each in _HOST_COMPILERS)


def of_nvjitlink(library: Library, cudadevrt: str | None) -> str:
    """Return nvJitLink's build and that of the device runtime which it links in."""
    runtime = f"; libcudadevrt {of_file(cudadevrt)}" if cudadevrt else ""
    return f"nvJitLink {library.version} {of_file(library.path)}{runtime}"


def _files_below(program: Program) -> dict[str, str]:
    """Return NVCC's files by their names below its folder, which no link or wrapper changes."""
    binary = os.path.realpath(program.binary)
    root = os.path.dirname(os.path.dirname(binary))
    found = {name: os.path.join(root, name) for name in _NVCC_FILES}
    return {"nvcc": binary, **{name: path for name, path in found.items() if os.path.isfile(path)}}


def _only_leads_to(path: str, binary: str) -> bool:
    """Say whether a program is the binary, or a script that only runs it: both are one compiler."""
    if os.path.realpath(path) == os.path.realpath(binary):
        return True
    try:
        with open(path, "rb") as file:
            script = _SCRIPT.fullmatch(file.read(_END))
    except OSError:
        return False
    return script is not None and os.path.realpath(script[1]) == os.path.realpath(binary.encode())


def _together(files: Iterable[tuple[str, str]]) -> str:
    return digest([field(name, of_file(path)) for name, path in files])[:16]
