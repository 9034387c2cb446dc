"""Advice on missing headers and undeclared names: which package has a header, and whether NVCC knows a name.

If a header of CUDA or of the host compiler declares a name that NVRTC does not know, NVCC can compile the source;
otherwise the name is misspelled. Without a host compiler NVCC cannot be used. Then only members of namespace std
count as declared, so the message names NVCC's requirements.
"""

from __future__ import annotations

import fnmatch
import functools
import glob
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rtcompile.named import NamedTuple
from rtcompile.request import cxx
from rtcompile.request.units import nvcc_environ
from rtcompile.toolkit.catalogue import PART, Part, command
from rtcompile.toolkit.model import Toolchain, output_of

if TYPE_CHECKING:
    from rtcompile.toolkit.model import Executable


# --- Advice for `cannot open source file` ---------------------------------------------------------


class HeaderAdvice(NamedTuple):
    """The package of a missing header (`what`), `why` it was not found, and the next `step`."""

    what: str
    why: str
    step: str


def missing_header(
    name: str, toolchain: Toolchain | None = None, backend: str = "nvrtc"
) -> HeaderAdvice | None:
    """Return the package of the header `name`, and why it was not found; None if unknown."""
    for part in PART.values():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in part.headers):
            why, step = _of_build(part, toolchain, backend) if toolchain else ("", "")
            what = part.what.partition(" (")[0]
            what = f"the {what}" if what.endswith("headers") else what
            return HeaderAdvice(what, why or "which is not installed here", step or _install(part))
    return None


def _of_build(found: Part, toolchain: Toolchain, backend: str) -> tuple[str, str]:
    """Return why this toolchain lacks it, and the next step; both empty if unknown."""
    part = found.name
    if part in toolchain.missing:
        fact, _, step = toolchain.missing[part].partition(". ")
        return f"which the search did not find fit: {fact}", step
    folder = next((d.path for d in toolchain.search if d.label == part), "")
    where = f"{toolchain.versions.get(part, '')} ({folder or toolchain.found_via.get(part, '')})"
    if part not in toolchain.found_via:
        return "", ""
    nvcc = toolchain.nvcc
    if backend == "nvcc" and nvcc and part not in [d.label for d in toolchain.nvcc_search]:
        why = (
            f"which is installed for NVRTC, {where}; nvcc {nvcc.version} ({nvcc.path}) reads the "
            "headers of its own toolkit, which is without it"
        )
        return why, _into_nvccs(found, toolchain.found_via.get("nvcc", ""), nvcc, folder)
    if toolchain.found_via[part] == "NVRTC" and toolchain.nvrtc:
        why = f"and NVRTC's own file, {where}, has only those that most kernels need"
        return why, command([found], "wheels13", toolchain.nvrtc.version_pair)
    return (
        f"which is installed, {where}, without this file",
        "Compare the name with its files.",
    )


def _into_nvccs(part: Part, found_via: str, nvcc: Executable, folder: str) -> str:
    """Return how to make the headers visible to nvcc."""
    # No wheel of CUDA 12 has nvcc.
    if layout := {"site-packages": "wheels13", "conda": "conda"}.get(found_via):
        return command([part], layout, nvcc.version_pair)
    # A folder that contains only cuRAND is safe as -I; others would mix with nvcc's own headers.
    add = f", or add -I{folder} to the options" if part.name == "curand" else ""
    return f"Install it into the toolkit that nvcc is of{add}."


def _install(part: Part) -> str:
    text = f"`pip install {part.package('wheels12')}`"
    if part.package("wheels13") != part.package("wheels12"):
        text += f" (CUDA 12) or `{part.package('wheels13')}` (CUDA 13)"
    if part.package("conda"):
        text += f", conda: {part.package('conda')}"
    return f"{text}; then {part.then}." if part.then else f"{text}."


# --- Whether NVCC's headers declare a name --------------------------------------------------------

_RUNTIME = ("cuda_runtime_api.h", "cuda_runtime.h")
_DEVICE_RUNTIME = ("cuda_device_runtime_api.h",)
_DRIVER = ("cuda.h",)
# The C headers that cuda_runtime.h includes, and so every source for NVCC.
_ALWAYS = "stdio stdlib string time math limits"
# The C headers with a C++ name, such as ``<cstdio>``.
_WRAPPED = (
    "assert complex ctype errno fenv float inttypes iso646 limits locale math setjmp signal stdalign "
    "stdarg stdbool stddef stdint stdio stdlib string tgmath time uchar wchar wctype"
)
# Matches a type or a macro, which device code may use too: `typedef … NAME;`, `#define NAME`.
_TYPE_OR_MACRO = r"typedef\b[^;{]*\b%s\s*;|#[ \t]*define[ \t]+%s\b"
_FOUND = "rtcompile_has_found_it"
_SECONDS = 10.0  # a hundred times a host compiler's preprocessing time


class Declared:
    """The names that headers of CUDA and of the host compiler declare for NVCC."""

    def __init__(self, toolchain: Toolchain) -> None:
        self._cuda = [directory.path for directory in toolchain.search]
        if toolchain.nvcc is not None:
            root = os.path.dirname(os.path.dirname(toolchain.nvcc.binary))
            targets = glob.glob(os.path.join(root, "targets", "*", "include"))
            self._cuda[:0] = [os.path.join(root, "include"), *targets]
        self._host = toolchain.host_compiler or ""

    def runtime(self, name: str) -> bool:
        """Return whether CUDA's headers declare `name`, ``"cudaMalloc"``, for host code."""
        return self._in_cuda(_RUNTIME, name)

    def device_runtime(self, name: str) -> bool:
        """Return whether CUDA's header for device code declares `name`, ``"cudaMalloc"``, and not as deprecated."""
        # A deprecated function has a macro with arguments in front of its name.
        declared = rf"\b__device__\b[^;{{}}()]*\b{re.escape(name)}\s*\("
        return any(re.search(declared, text) for text in self._texts(_DEVICE_RUNTIME))

    def driver(self, name: str) -> bool:
        """Return whether the driver's header declares `name`, ``"cuMemAlloc"``."""
        return self._in_cuda(_DRIVER, name)

    def host_header(self, name: str) -> bool:
        """Return whether ``#include <name>`` finds a header of the host compiler or its system."""
        if not self._host:  # assume that a name without a suffix is the standard library's
            return name.isidentifier()
        return _FOUND in _preprocessed(self._host, "c++", _if_there(name, _FOUND))

    def std(self, name: str) -> bool:
        """Return whether `name` occurs in the C++ standard library's headers."""
        header = "bits/stdc++.h"
        text = _preprocessed(self._host, "c++", _if_there(header, f"#include <{header}>"))
        return not text.strip() or cxx.has_word(text, (name,))

    def c_library(self, name: str) -> bool:
        """Return whether the C library's headers that C++ wraps declare the function, type, variable or macro `name`."""
        text, word = _c_headers(self._host, _WRAPPED), re.escape(name)
        without_parameters = re.sub(r"\([^()]*\)", "()", text)  # their names declare nothing
        declared = rf"\b{word}\s*\(|\bextern\b[^;{{}}()]*\b{word}\s*;"
        return bool(
            re.search(declared, without_parameters)
            or re.search(_TYPE_OR_MACRO % (word, word), text)
        )

    def brought_along(self, name: str) -> bool:
        """Return whether `name` is a type or macro that NVCC knows without any include."""
        word = re.escape(name)
        return bool(re.search(_TYPE_OR_MACRO % (word, word), _c_headers(self._host, _ALWAYS)))

    def anywhere(self, name: str, headers: Sequence[str]) -> bool:
        """Return whether one of these files, or a header that NVCC may read besides, has `name`."""
        cuda = (self.runtime, self.driver, self.device_runtime)
        known = (*cuda, self.c_library, self.brought_along, self.std)
        return any(declares(name) for declares in known) or any(
            cxx.has_word(_read(path), (name,)) for path in headers
        )

    def _texts(self, headers: Sequence[str]) -> list[str]:
        paths = [os.path.join(folder, header) for header in headers for folder in self._cuda]
        return [_read(path) for path in paths if os.path.isfile(path)]

    def _in_cuda(self, headers: Sequence[str], name: str) -> bool:
        texts = self._texts(headers)
        # Plain text is searched first, so comments are removed from few files.
        return not texts or any(
            cxx.has_word(text, (name,)) and cxx.has_word(cxx.blanked(text), (name,))
            for text in texts
        )


def _c_headers(compiler: str, names: str) -> str:
    headers = [f"{name}.h" for name in names.split()]
    return _preprocessed(compiler, "c", "".join(_if_there(h, f"#include <{h}>") for h in headers))


def _if_there(header: str, line: str) -> str:
    return f"#if __has_include(<{header}>)\n{line}\n#endif\n"


@functools.lru_cache(maxsize=8)
def _preprocessed(compiler: str, language: str, source: str) -> str:
    """Return a host compiler's preprocessed source, with macros; empty without a compiler."""
    if os.path.isdir(compiler):  # nvcc's -ccbin may name a folder
        compiler = os.path.join(compiler, "g++")
    how = ["-dD"] if language == "c" else ["-std=gnu++2a"]  # the newest that GCC 8 knows
    command = [compiler, "-E", "-P", *how, "-x", language, "-"]
    return output_of(command, nvcc_environ(os.environ), _SECONDS, source.encode())


_DEVICE_HEADERS = ("crt/*_functions.h*", "crt/sm_*", "*_functions.h", "*_intrinsics.h", "sm_*.h")


def device_functions(toolchain: Toolchain) -> frozenset[str]:
    """Return the functions that CUDA's headers declare for device code, or NVRTC's library does."""
    folders = [glob.escape(d.path) for d in toolchain.search if d.label in ("cudart", "crt")]
    paths = [p for f in folders for h in _DEVICE_HEADERS for p in glob.glob(os.path.join(f, h))]
    if not paths and toolchain.nvrtc is not None:
        paths = [*toolchain.nvrtc.preload]  # the declarations that NVRTC reads before every source
    called = r"\b([A-Za-z_]\w{2,40}) *\("
    return frozenset(word for path in paths for word in re.findall(called, _read(path), re.ASCII))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
