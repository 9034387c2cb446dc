"""Headers that are given as texts, and that no folder holds: the compiler reads them from memory.

Their path has the digest of them all, so a path never stands for two texts. A build that no path got
into depends on the texts that it read or looked for, whose digests are among its answers.
"""

from __future__ import annotations

import functools

from rtcompile.storage.digest import content_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rtcompile.core.request import CompileRequest

    Texts = tuple[tuple[str, str], ...]

# Nothing is looked for on disk below it: see `workers.probes`.
FOLDER = "/rtcompile-headers/"

LABEL = "user-texts"
_ANSWER = f"{LABEL} "  # no directory's label begins with it
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
    return LABEL if directory.startswith(FOLDER) else ""


def paths(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the headers with their whole paths."""
    top = folder(headers) if headers else ""
    return tuple((f"{top}/{name}", text) for name, text in headers)


def answers(names: Iterable[str], texts: Mapping[str, str]) -> set[str]:
    """Return what a build depends on that read or looked for these names; of an absent one, that it is."""
    return {f"{_ANSWER}{name}={_digest(texts.get(name))}" for name in names}


def answer_of_all(path: str) -> str:
    """Return what a build depends on that may depend on all texts of a folder, or on its path."""
    return f"{_ANSWER}={path}"


def are_as_answered(headers: Texts, before: Iterable[str]) -> bool:
    """Say whether a build with these headers would get the answers, as far as they concern texts."""
    texts = dict(headers)
    for answer in before:
        if answer.startswith(_ANSWER):
            name, _, digest = answer[len(_ANSWER) :].rpartition("=")
            now = _digest(texts.get(name)) if name else folder(headers)
            if digest != now:
                return False
    return True


def _digest(text: str | None) -> str:
    return "" if text is None else content_digest(text.encode())
