"""Headers that are given as texts, and that no folder holds: the compiler reads them from memory.

Their path has the digest of them all, so a path never stands for two texts: keys have the path
or the label of their folder, and nothing has to be checked later.
"""

from __future__ import annotations

import functools

from rtcompile.storage.digest import content_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rtcompile.core.request import CompileRequest

# Nothing is looked for on disk below it: see `workers.probes`.
FOLDER = "/rtcompile-headers/"

_LABEL = "user-texts "
_DIGITS = 32


@functools.lru_cache(maxsize=16)  # a program's builds have the same
def folder(headers: tuple[tuple[str, str], ...]) -> str:
    """Return the path of the folder that these headers seem to be in."""
    parts = [part.encode() for pair in headers for part in pair]
    digest = content_digest(b"".join(b"%d:%s;" % (len(part), part) for part in parts))
    return FOLDER + digest[:_DIGITS]


def with_headers(request: CompileRequest) -> CompileRequest:
    """Return the request with the folder that its headers seem to be in, which is searched first."""
    if not request.headers:
        return request
    option = f"-I{folder(request.headers)}"
    if option in request.options:
        return request
    return request.replace(options=(option, *request.options))


def label(directory: str) -> str:
    """Return the label of the search directory of such headers; ``""`` of any other directory."""
    return _LABEL + directory[len(FOLDER) :] if directory.startswith(FOLDER) else ""


def paths(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the headers with their whole paths."""
    top = folder(headers) if headers else ""
    return tuple((f"{top}/{name}", text) for name, text in headers)
