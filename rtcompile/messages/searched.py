"""What the folders that the compiler searches have: a header of a name, and a name in a header."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator

from rtcompile.messages.declared import all_qualified
from rtcompile.messages.facts import BuildContext, Match, Values, headers_in
from rtcompile.request import cxx

_TENSOR_CORES = 70
_SHORTEST = 4  # a shorter name is declared somewhere
_MOST_SAME_NAMES = 3  # more do not tell which one is meant


def host_api(match: Match, context: BuildContext) -> Values | None:
    """Apply to a function that the runtime's headers declare for the host."""
    name = re.compile(rf"\b{match['identifier']}\s*\(")
    files = ((f, text) for d in context.search for f, text in headers_in(d.path, "cuda_runtime*.h"))
    header = next((file for file, text in files if name.search(text)), "")
    step = "Call it from Python (CuPy)"
    if re.match(r"cudaMem(?:cpy|set)", match["identifier"]):
        called = (
            "memcpy(to, from, bytes)" if "cpy" in match["identifier"] else "memset(to, 0, bytes)"
        )
        step = f"In a kernel write an assignment or {called}, or call it from Python (CuPy)"
    return {"header": header, "step": step} if header else None


def error_of_number(number: str, context: BuildContext) -> str:
    """Return the name of an error in the runtime's header, ``"cudaErrorIllegalAddress"``; "" if it lists no such number."""
    for folder in context.search:
        for _, text in headers_in(folder.path, "driver_types.h"):
            named = re.search(
                rf"^\s+(cudaError[A-Z]\w+)\s*=\s*{int(number)},?\s*$", text, re.MULTILINE
            )
            if named:
                return named[1]
    return ""


def searched(_: Match, context: BuildContext) -> Values:
    if not context.search:
        return {"searched": "The file is in no folder that the compiler searched"}
    where = f"{len(context.search)} directories searched"
    name = os.path.basename(_["header"])
    for folder in context.user_dirs():
        paths = (
            path
            for depth in ("*", "*/*")
            for path in glob.iglob(f"{glob.escape(folder)}/{depth}/{name}")
        )
        if path := next(paths, ""):
            inner = path.removesuffix(_["header"]).rstrip("/")
            return {
                "searched": f"It is none of the files in {folder} itself: {path} has this name. Write -I{inner}"
            }
    users = ", ".join(
        folder if os.path.isdir(folder) else f"{folder}, which does not exist"
        for folder in context.user_dirs()
    )
    users = users or "none of your own"
    return {"searched": f"It is in none of the {where} ({users})"}


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
    """Return which header of this installation declares a name that the compiler does not know."""
    word = match["identifier"]
    found = context.header_of(word) if len(word) >= _SHORTEST else []
    if not found:
        return None
    which = f", which <{found[1]}> includes" if len(found) > 1 else ""
    edited = context.with_header(found[-1])
    names = {"found": found[0], "which": which, "include": found[-1]}
    return {**names, "edited": edited}


def header_there(match: Match, context: BuildContext) -> Values | None:
    """Apply only to a header that is in a searched folder: another program's compiler did not search it."""
    folders = () if context.source else context.search
    found = (d.path for d in folders if os.path.isfile(os.path.join(d.path, match["header"])))
    folder = next(found, "")
    return {"folder": folder} if folder else None


def header_renamed(match: Match, context: BuildContext) -> Values | None:
    """Return the headers that the toolkit has deeper in its folders than they were included."""
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


def wmma_missing(_: Match, context: BuildContext) -> Values | None:
    """Return why nvcuda has no namespace wmma in this build."""
    if context.arch is not None and context.arch.number < _TENSOR_CORES:
        return {"why": f"{context.arch} has no tensor cores; WMMA begins with sm_70."}
    if "mma.h" not in context.source:
        return {"why": "The source does not include <mma.h>."}
    if not context.has_option("-arch", "--gpu-architecture"):
        return {"why": "No architecture was fixed, and mma.h declares nothing below sm_70."}
    return None


def namespace_inside(_: Match, context: BuildContext) -> Values | None:
    """Return the whole name of a namespace that a header of the source declares inside another one."""
    word = "" if context.left.endswith("::") else context.word
    whole = _declared_within(word, rf"namespace\s+{word}\b", context) if word else ""
    is_hidden = whole.startswith("nvcuda") and context.arch and context.arch.number < _TENSOR_CORES
    return {"word": word, "whole": whole} if whole and not is_hidden else None


def name_inside(match: Match, context: BuildContext) -> Values | None:
    """Return the whole name of a class, an enumerator and the like, as the source spells it or a header declares it."""
    word = match["identifier"]
    if spelled := re.search(rf"(?:\b\w+::)+{word}\b", context.code):
        line = context.code.count("\n", 0, spelled.start()) + 1
        edited = context.with_text(word, spelled[0])
        where = f"line {line}"
        return {"whole": spelled[0], "where": where, "edited": edited, "known": "yes"}
    declared = rf"(?:(?:struct|class|enum|enum\s+class)\s+{word}\s*[;:{{]|(?<=[{{,\s]){word}\s*(?:=[^,{{}}();]+)?[,}}])"
    whole = _declared_within(word, declared, context) if len(word) >= _SHORTEST else ""
    if not whole:
        return None
    where = "a header that the source includes"
    edited = context.with_text(word, whole)
    return {"whole": whole, "where": where, "edited": edited, "known": "yes"}


_DEPTH = 4  # <cuda/atomic> declares its names in the third header


def _declared_within(word: str, declared: str, context: BuildContext) -> str:
    """Return the name with its namespaces, as headers that the source includes declare it; "" without."""
    if re.search(rf"\b{declared}", context.code):
        return ""
    for text in context.included(depth=_DEPTH):
        if word in text and re.search(declared, text):
            code = cxx.blanked(text, literals=True, directives=True)
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
        parent, file = os.path.split(os.path.join(folder, header))
        is_named = os.path.splitext(file)[0].replace("_", "").lower() == plain
        if is_named and declares.search(cxx.blanked(_with_parts(parent, file))):
            is_read = re.search(rf"#\s*include\s*[<\"]{re.escape(header)}", context.source)
            edited = context.with_header(header)
            return None if is_read else {"header": header, "edited": edited}
    return None


def _of_toolkit(context: BuildContext, inside: str = "") -> Iterator[tuple[str, str]]:
    """Yield the toolkit's folders, and the files in them and below as they are included, but internal ones."""
    own = context.user_dirs()
    for folder in dict.fromkeys(d.path for d in context.search if d.path not in own):
        for parent, folders, files in os.walk(os.path.join(folder, inside)):
            folders[:] = sorted(each for each in folders if not each.startswith(_INNER))
            yield from (
                (folder, os.path.relpath(os.path.join(parent, f), folder)) for f in sorted(files)
            )


def _with_parts(folder: str, file: str) -> str:
    """Return the text of a header, and of those that it includes from its own folder and below."""
    text = "".join(text for name, text in headers_in(folder, file) if name == file)
    parts = re.findall(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', text, re.MULTILINE)
    for part in parts:
        parent, name = os.path.split(os.path.join(folder, part))
        text += "".join(each for _, each in headers_in(parent, name))
    return text
