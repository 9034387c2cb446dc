"""Searches an installation's headers: a missing header's package, the header of a name, and whether NVCC knows a name.

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
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rtcompile.messages.declared import all_qualified
from rtcompile.messages.facts import TABLES, BuildContext, Match, Values, headers_in, text_of
from rtcompile.request import cxx
from rtcompile.request.units import nvcc_environ
from rtcompile.toolkit.catalogue import PART, Part, command
from rtcompile.toolkit.model import Toolchain, output_of

if TYPE_CHECKING:
    from rtcompile.toolkit.model import Executable


# --- Advice for `cannot open source file` ---------------------------------------------------------


def missing_header(
    name: str, toolchain: Toolchain | None = None, backend: str = "nvrtc"
) -> dict[str, str] | None:
    """Return the package of the header `name` (`what`), `why` it was not found, and the next `step`; None if unknown."""
    for part in PART.values():
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in part.headers):
            why, step = _of_build(part, name, toolchain, backend) if toolchain else ("", "")
            why = why or "which is not installed here"
            return {"what": part.in_text, "why": why, "step": step or _install(part)}
    return None


def _of_build(found: Part, name: str, toolchain: Toolchain, backend: str) -> tuple[str, str]:
    """Return why this toolchain lacks a header of a part, and the next step; both empty if unknown."""
    part = found.name
    if part in toolchain.missing:
        fact, _, step = toolchain.missing[part].partition(". ")
        return f"which the search did not accept: {fact}", step
    folders = [each.path for each in toolchain.search if each.label == part]
    folder = folders[0] if folders else ""
    where = f"{toolchain.versions.get(part, '')} ({folder or toolchain.found_via.get(part, '')})"
    if part not in toolchain.found_via:
        return "", ""
    is_there = any(os.path.exists(os.path.join(each, name)) for each in folders)
    nvcc = toolchain.nvcc if is_there else None
    if backend == "nvcc" and nvcc and part not in [d.label for d in toolchain.nvcc_search]:
        why = (
            f"which is installed for NVRTC, {where}; nvcc {nvcc.version} ({nvcc.path}) reads the "
            "headers of its own toolkit, which lacks it"
        )
        return why, _into_nvccs(found, toolchain.found_via.get("nvcc", ""), nvcc, folder)
    if toolchain.found_via[part] == "NVRTC" and toolchain.nvrtc:
        why = f"and NVRTC's own file, {where}, has only the headers that most kernels need"
        return why, command([found], "wheels13", toolchain.nvrtc.version_pair)
    return (f"which is installed, {where}, without this file", "Compare the name with its files.")


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

_HOST_API = ("cuda_runtime_api.h", "cuda_runtime.h", "cuda.h")
_DEVICE_RUNTIME = ("cuda_device_runtime_api.h",)
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

    def host_api(self, name: str) -> bool:
        """Return whether CUDA's headers declare `name`, ``"cudaMalloc"`` or ``"cuMemAlloc"``, for host code."""
        texts = self._texts(_HOST_API)
        # Plain text is searched first, so comments are removed from few files.
        return not texts or any(
            cxx.has_word(text, (name,)) and cxx.has_word(cxx.blanked(text), (name,))
            for text in texts
        )

    def device_runtime(self, name: str) -> bool:
        """Return whether CUDA's header for device code declares `name`, ``"cudaMalloc"``, and not as deprecated."""
        # A deprecated function has a macro with arguments in front of its name.
        declared = rf"\b__device__\b[^;{{}}()]*\b{re.escape(name)}\s*\("
        return any(re.search(declared, text) for text in self._texts(_DEVICE_RUNTIME))

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
        cuda = (self.host_api, self.device_runtime)
        known = (*cuda, self.c_library, self.brought_along, self.std)
        return any(declares(name) for declares in known) or any(
            cxx.has_word(text_of(path), (name,)) for path in headers
        )

    def _texts(self, headers: Sequence[str]) -> list[str]:
        paths = (os.path.join(folder, header) for header in headers for folder in self._cuda)
        return [*filter(None, map(text_of, paths))]


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
    return frozenset(word for path in paths for word in re.findall(called, text_of(path), re.ASCII))


# --- Headers and names in the folders that the compiler searches ------------------------------------

_TENSOR_CORES = 70
_SHORTEST = 4  # a shorter name is declared somewhere
_MOST_SAME_NAMES = 3  # more do not tell which one is meant


def host_api(match: Match, context: BuildContext) -> Values | None:
    """Apply to a function that the runtime's headers declare for the host."""
    name = re.compile(rf"\b{match['identifier']}\s*\(")
    files = context.headers("cuda_runtime*.h")
    header = next((file for file, text in files if name.search(text)), "")
    return {"header": header} if header else None


def error_of_number(number: str, context: BuildContext) -> str:
    """Return the name of an error in the runtime's header, ``"cudaErrorIllegalAddress"``; "" if it lists no such number."""
    stated = re.compile(rf"^\s+(cudaError[A-Z]\w+)\s*=\s*{int(number)},?\s*$", re.MULTILINE)
    found = (stated.search(text) for _, text in context.headers("driver_types.h"))
    return next((each[1] for each in found if each), "")


def searched(match: Match, context: BuildContext) -> Values:
    header, users = match["header"], context.user_dirs()
    if not context.search:
        return {"searched": "The file is in no folder that the compiler searched"}
    name = glob.escape(os.path.basename(header))
    for folder in users:
        below = (f"{glob.escape(folder)}/{depth}/{name}" for depth in ("*", "*/*"))
        if path := next((path for each in below for path in glob.iglob(each)), ""):
            inner = path.removesuffix(header).rstrip("/")
            where = f"It is none of the files in {folder} itself: {path} has this name"
            return {"searched": f"{where}. Write -I{inner}"}
    shown = [d if os.path.isdir(d) else f"{d}, which does not exist" for d in users]
    where = f"{len(context.search)} directories searched"
    return {"searched": f"It is in none of the {where} ({', '.join(shown) or 'none of your own'})"}


def umbrella(match: Match, context: BuildContext) -> Values | None:
    included = re.search(r"#\s*include\s*[<\"](cub/cub\.cuh|thrust/[\w/.]+)[>\"]", context.source)
    header = match["header"] or (included and included[1])
    if not header:
        return None
    step = "Include the block- or warp-level headers that you need instead, such as "
    step += "<cub/block/block_reduce.cuh> or <cub/warp/warp_scan.cuh>"
    if header.startswith("thrust/complex"):
        step = "Use cuda::std::complex of <cuda/std/complex>"
    elif header.startswith("thrust/"):
        step = "Call Thrust in the host's program, and what CUB has for a block or a warp in the kernel"
    return {"umbrella": header, "step": step}


def in_header(match: Match, context: BuildContext) -> Values | None:
    """Return which header of the toolkit declares a name that the compiler does not know, and the one that includes it."""
    name = match["identifier"]
    if len(name) < _SHORTEST:
        return None
    word = re.escape(name)
    declares = re.compile(  # in a line that is not indented: what is inside a function or a class is not meant
        rf"^(?:#[ \t]*define[ \t]+{word}\b|(?:typedef|struct|class|union|using)\b[^;{{}}()]*\b{word}\b"
        rf"|(?!.*\b(?:CUDAAPI|CUDARTAPI)\b)[A-Za-z_][\w:<>,*& \t()]*[\s*&]{word}[ \t]*\()",
        re.MULTILINE,
    )
    for folder in context.toolkit_dirs():
        texts = dict(headers_in(folder))
        texts.pop("cuda.h", None)  # the driver's functions are the host's
        found = [
            f for f, text in texts.items() if name in text and declares.search(cxx.blanked(text))
        ]
        if not found:
            continue
        first = min(
            found, key=lambda file: (not name.startswith(file.partition(".")[0]), len(file))
        )
        includes = re.compile(rf'#\s*include\s*[<"]{re.escape(first)}')
        stem = first.partition(".")[0]
        family = stem.partition("_")[0]
        family = stem if family == "cuda" else family  # cuda_fp8.h is no part of cuda_bf16.h
        outer = next(
            (
                f
                for f, text in texts.items()
                if f.startswith(family) and f != first and includes.search(text)
            ),
            "",
        )
        which = f", which <{outer}> includes" if outer else ""
        edited = context.with_header(outer or first)
        return {"found": first, "which": which, "include": outer or first, "edited": edited}
    return None


def header_there(match: Match, context: BuildContext) -> Values | None:
    """Apply only to a header that is in a searched folder: another program's compiler did not search it."""
    folders = () if context.source else context.search
    found = (d.path for d in folders if os.path.isfile(os.path.join(d.path, match["header"])))
    folder = next(found, "")
    return {"folder": folder} if folder else None


def header_renamed(match: Match, context: BuildContext) -> Values | None:
    """Return the toolkit's headers of this name that are deeper in its folders than the include says."""
    parts = match["header"].split("/")
    found: dict[str, str] = {}  # how to include it, and the folder that is searched
    for folder, path in _of_toolkit(context):
        inside = path.split("/")
        if inside[-1] == parts[-1] and {*parts} <= {*inside}:
            found.setdefault(path, folder)
    outer = min(
        (name.count("/") for name in found), default=0
    )  # deeper ones are copies in other packages
    paths = sorted(name for name in found if name.count("/") == outer)
    if match["header"] in found or not 0 < len(paths) <= _MOST_SAME_NAMES:
        return None
    names = [f"<{name}>" for name in paths]
    where = " and ".join(dict.fromkeys(found[name] for name in paths))
    return {"folder": where, "names": " and ".join(names), "first": " or ".join(names)}


def namespace_inside(_: Match, context: BuildContext) -> Values | None:
    """Return the whole name of a namespace that a header of the source declares inside another one."""
    word = "" if context.left.endswith("::") else context.word
    whole = _declared_within(word, rf"namespace\s+{word}\b", context) if word else ""
    is_hidden = whole.startswith("nvcuda") and context.arch and context.arch.number < _TENSOR_CORES
    return {"word": word, "whole": whole} if whole and not is_hidden else None


def name_inside(match: Match, context: BuildContext) -> Values | None:
    """Return the whole name of a class, an enumerator and the like, as the source spells it or a header declares it."""
    word = match["identifier"]
    whole, where = "", "a header that the source includes"
    declared = rf"(?:(?:struct|class|enum|enum\s+class)\s+{word}\s*[;:{{]|(?<=[{{,\s]){word}\s*(?:=[^,{{}}();]+)?[,}}])"
    if spelled := re.search(rf"(?:\b\w+::)+{word}\b", context.code):
        whole, where = spelled[0], f"line {context.line_of(spelled.start())}"
    elif len(word) >= _SHORTEST:
        whole = _declared_within(word, declared, context)
    edited = context.with_text(word, whole)
    known = {"whole": whole, "where": where, "edited": edited, "known": "yes"}
    return known if whole else None


_DEPTH = 4  # <cuda/atomic> declares its names in the third header


def _declared_within(word: str, declared: str, context: BuildContext) -> str:
    """Return the name with its namespaces, as headers that the source includes declare it; "" if none does."""
    if re.search(rf"\b{declared}", context.code):
        return ""
    for text in context.included(depth=_DEPTH):
        if word in text and re.search(declared, text):
            code = cxx.blanked(text, literals=True, directives=True)
            for macro, name in TABLES["namespaces"].items():
                code = re.sub(
                    rf"\b{macro}\b", name if name == "}" else f"namespace {name} {{", code
                )
            found = re.finditer(rf"\b{declared}", code)
            starts = {code.index(word, each.start()) for each in found}
            if whole := next(all_qualified(word, code, starts, "namespace"), ""):
                return whole
    return ""


_INNER = ("detail", "details", "impl", "__", "dispatch", "agent", "cccl")


def member_header(match: Match, context: BuildContext) -> Values | None:
    """Return the header below a namespace's own folder that declares one of its members."""
    scope, word = match["scope"], match["member"]
    plain = word.replace("_", "").lower()
    declares = re.compile(
        rf"\b(?:struct|class|using|enum)\s+{re.escape(word)}\b|[\s*&]{re.escape(word)}\s*\("
    )
    for folder, header in _of_toolkit(context, scope.replace("::", "/")):
        stem = os.path.splitext(os.path.basename(header))[0].replace("_", "").lower()
        path = os.path.join(folder, header)
        if stem == plain and declares.search(cxx.blanked(_with_parts(path))):
            is_read = re.search(rf"#\s*include\s*[<\"]{re.escape(header)}", context.source)
            edited = context.with_header(header)
            return None if is_read else {"header": header, "edited": edited}
    return None


def _of_toolkit(context: BuildContext, inside: str = "") -> Iterator[tuple[str, str]]:
    """Yield the toolkit's folders, and the files in them and below as they are included, except internal ones."""
    for folder in context.toolkit_dirs():
        for parent, folders, files in os.walk(os.path.join(folder, inside)):
            folders[:] = sorted(each for each in folders if not each.startswith(_INNER))
            yield from (
                (folder, os.path.relpath(os.path.join(parent, f), folder)) for f in sorted(files)
            )


def _with_parts(path: str) -> str:
    """Return the text of a header, and of those that it includes from its own folder and below."""
    text, folder = text_of(path), os.path.dirname(path)
    parts = re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', text, re.MULTILINE)
    return text + "".join(text_of(os.path.join(folder, part)) for part in parts)
