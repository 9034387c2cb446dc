"""What the folders that the compiler searches have: a header of a name, and a name in a header."""

from __future__ import annotations

import os
import re

from rtcompile.messages.facts import BuildContext, Match, Values, headers_in

_SHORTEST = 4  # a shorter name is declared somewhere
_MOST_SAME_NAMES = 3  # more do not tell which one is meant


def host_api(match: Match, context: BuildContext) -> Values | None:
    """Apply to a function that the runtime's headers declare for the host."""
    name = re.compile(rf"\b{match['identifier']}\s*\(")
    files = ((f, text) for d in context.search for f, text in headers_in(d.path, "cuda_runtime*.h"))
    header = next((file for file, text in files if name.search(text)), "")
    return {"header": header} if header else None


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
    users = ", ".join(
        folder if os.path.isdir(folder) else f"{folder}, which does not exist"
        for folder in context.user_dirs()
    )
    users = users or "none of your own"
    return {"searched": f"It is in none of the {where} ({users})"}


def umbrella(match: Match, context: BuildContext) -> Values | None:
    included = re.search(r"#\s*include\s*[<\"](cub/cub\.cuh|thrust/[\w/.]+)[>\"]", context.source)
    header = match["header"] or (included and included[1])
    return {"umbrella": header} if header else None


def in_header(match: Match, context: BuildContext) -> Values | None:
    """Return which header of this installation declares a name that the compiler does not know."""
    word = match["identifier"]
    found = context.header_of(word) if len(word) >= _SHORTEST else []
    if not found:
        return None
    which = f", which <{found[1]}> includes" if len(found) > 1 else ""
    return {"found": found[0], "which": which, "include": found[-1]}


def header_there(match: Match, context: BuildContext) -> Values | None:
    """Apply only to a header that is in a searched folder: another program's compiler did not search it."""
    folders = () if context.source else context.search
    found = (d.path for d in folders if os.path.isfile(os.path.join(d.path, match["header"])))
    folder = next(found, "")
    return {"folder": folder} if folder else None


def header_renamed(match: Match, context: BuildContext) -> Values | None:
    """Return the headers that the toolkit has deeper in its folders than they were included."""
    file, own = os.path.basename(match["header"]), context.user_dirs()
    found: dict[str, str] = {}  # how to include it, and the folder that is searched
    for folder in dict.fromkeys(d.path for d in context.search if d.path not in own):
        for parent, folders, files in os.walk(folder):
            folders[:] = [each for each in folders if each not in ("detail", "impl", "cccl")]
            path = os.path.relpath(os.path.join(parent, file), folder)
            if file in files and set(match["header"].split("/")) <= set(path.split("/")):
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
