"""Finds out whether NVCC's headers declare a name, by reading them after a failed compile.

NVRTC reports an unknown name. If a header of CUDA or of the host compiler declares it, NVCC can
compile the source; else the name is misspelled. Without a host compiler NVCC cannot be used. Then
only members of namespace std count as declared, so the message names what NVCC needs.
"""

from __future__ import annotations

import functools
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence

from rtcompile.core import cxx
from rtcompile.toolkit.model import Toolchain

_RUNTIME = ("cuda_runtime_api.h", "cuda_runtime.h", "cuda_device_runtime_api.h")
_DRIVER = ("cuda.h",)
# The C headers that cuda_runtime.h includes, which every source for NVCC therefore has.
_ALWAYS = ("stdlib.h", "string.h", "time.h", "math.h", "limits.h")
# Matches a type or a macro, which device code may use too: `typedef … NAME;`, `#define NAME`.
_TYPE_OR_MACRO = r"typedef\b[^;{]*\b%s\s*;|#[ \t]*define[ \t]+%s\b"


class Declared:
    """The names that headers of CUDA and of the host compiler would declare in a compile with NVCC."""

    def __init__(self, toolchain: Toolchain) -> None:
        self._cuda = [directory.path for directory in toolchain.search]
        if toolchain.nvcc is not None:
            root = os.path.dirname(os.path.dirname(toolchain.nvcc.binary))
            self._cuda[:0] = [os.path.join(root, "include"), *_targets(root)]
        self._host = host_directories(toolchain.host_compiler)
        self._c = tuple(directory for directory in self._host if not _is_standard(directory))

    def runtime(self, name: str) -> bool:
        """Say whether CUDA's runtime headers declare `name`, ``"cudaMalloc"``."""
        return self._in_cuda(_RUNTIME, name)

    def driver(self, name: str) -> bool:
        """Say whether the driver's header declares `name`, ``"cuMemAlloc"``."""
        return self._in_cuda(_DRIVER, name)

    def host_header(self, name: str) -> bool:
        """Say whether ``#include <name>`` finds a header of the host compiler or its system."""
        if not self._host:  # assume that a name without a suffix is the standard library's
            return name.isidentifier()
        return any(os.path.isfile(os.path.join(d, name)) for d in self._host)

    def std(self, name: str) -> bool:
        """Say whether `name` occurs in the C++ standard library's headers."""
        standard = [directory for directory in self._host if _is_standard(directory)]
        files = (file for directory in standard for file in _standard_files(directory))
        return not standard or _mentioned(name, files)

    def c_library(self, name: str) -> bool:
        """Say whether `name` occurs in those of the C library's headers that C++ wraps."""
        return _mentioned(name, _closure(tuple(_wrapped(self._host)), self._c))

    def brought_along(self, name: str) -> bool:
        """Say whether `name` is a type or macro that NVCC knows without any include."""
        word = re.escape(name)
        pattern = re.compile(_TYPE_OR_MACRO % (word, word))
        return any(pattern.search(_text(file)) for file in _closure(_ALWAYS, self._c))

    def _in_cuda(self, headers: Sequence[str], name: str) -> bool:
        found = [p for p in _paths(self._cuda, headers) if os.path.isfile(p)]
        return not found or _mentioned(name, found)


def host_directories(compiler: str | None) -> list[str]:
    """Return the header directories of the GCC at `compiler`, found by GCC's usual layout."""
    if compiler is None:
        return []
    prefix = os.path.dirname(os.path.dirname(os.path.realpath(compiler)))
    patterns = (
        "include/c++/*",
        "lib/gcc/*/*/include/c++",
        "lib/gcc/*/*/include",
        "*/sysroot/usr/include",
        "include/*-linux-gnu",
        "include",
    )
    roots = dict.fromkeys((prefix, "/usr"))
    found = (sorted(glob.glob(os.path.join(r, p)), reverse=True) for r in roots for p in patterns)
    return [directory for directories in found for directory in directories]


def _targets(root: str) -> list[str]:
    return glob.glob(os.path.join(root, "targets", "*", "include"))


def _is_standard(directory: str) -> bool:
    return os.path.isfile(os.path.join(directory, "bits", "stl_vector.h"))


def _standard_files(directory: str) -> Iterator[str]:
    for folder in (directory, os.path.join(directory, "bits")):
        with os.scandir(folder) as entries:
            yield from sorted(entry.path for entry in entries if entry.is_file())


def _wrapped(directories: Iterable[str]) -> list[str]:
    """Return the C headers that libstdc++'s ``<cstdio>`` and its like wrap."""
    names: dict[str, None] = {}
    for directory in filter(_is_standard, directories):
        for wrapper in sorted(glob.glob(os.path.join(directory, "c*"))):
            if os.path.isfile(wrapper):
                found = _included(wrapper)
                names.update((name, None) for name in found if re.fullmatch(r"\w+\.h", name))
    return list(names)


@functools.lru_cache(maxsize=8)
def _closure(names: tuple[str, ...], directories: tuple[str, ...]) -> tuple[str, ...]:
    """Return the files of these headers and of every header that they include."""
    waiting = list(names)
    seen = set(waiting)
    files = []
    while waiting:
        # All directories are searched, since GCC's <limits.h> includes the system's by
        # `include_next`.
        for path in _paths(directories, [waiting.pop()]):
            if not os.path.isfile(path):
                continue
            files.append(path)
            for name in _included(path):
                if name not in seen:
                    seen.add(name)
                    waiting.append(name)
    return tuple(files)


def _paths(directories: Iterable[str], names: Sequence[str]) -> Iterator[str]:
    return (os.path.join(directory, name) for name in names for directory in directories)


def _mentioned(name: str, files: Iterable[str]) -> bool:
    # The plain search comes first, so comments are removed from few files only.
    return any(
        cxx.has_word(_read(file), (name,)) and cxx.has_word(_text(file), (name,)) for file in files
    )


def _included(path: str) -> list[str]:
    found = (directive.included for directive in cxx.Text(_read(path)).directives())
    return [name[1:-1] for name in found if name[:1] in ("<", '"')]


def _text(path: str) -> str:
    """Return a header's text without comments, whose English words could look like names."""
    return cxx.blanked(_read(path))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
