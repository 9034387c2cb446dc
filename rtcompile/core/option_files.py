"""Options files (``--options-file``): their content replaces the option that names them.

If the compiler read the file itself, an edit of that file would change the build without changing
the cache key.
"""

from __future__ import annotations

import os

from rtcompile.errors import InvalidRequest
from rtcompile.lookup import fileset

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from rtcompile.core.header import Header

_DEEPEST = 8
_OPTIONS = {f"{dashes}{name}" for dashes in ("-", "--") for name in ("options-file", "optf")}
_QUOTES = "\"'\\"  # without them a text's words are what stands between blanks


def read_in(options: Iterable[str], headers: list[Header], depth: int = 0) -> tuple[str, ...]:
    """Return options with the words of each ``--options-file`` in its place, and note it in `headers`."""
    read: list[str] = []
    rest = iter(options)
    for option in rest:
        # An element that is nothing else: "--options-file=a,b", "-optf a", or "-optf" before "a".
        name, _, value = option.strip().partition("=")
        if name not in _OPTIONS:
            name, value = (*option.split(None, 1), "", "")[:2]
        if name not in _OPTIONS:
            read.append(option)
            continue
        names = value or next(rest, "")
        if not names:
            raise InvalidRequest(f"{option!r} names no file")
        if depth >= _DEEPEST:
            raise InvalidRequest(f"--options-file={names}: files name each other {_DEEPEST} deep")
        for name in names.split(","):
            read += read_in(_words(name.strip().strip("\"'"), headers), headers, depth + 1)
    return tuple(read)


def _words(path: str, headers: list[Header]) -> list[str]:
    try:
        header, data, _ = fileset.read(os.path.abspath(path), "user", path)
        headers.append(header)
        text = data.decode()
    except (OSError, ValueError) as error:  # a path with a NUL, a text that is not UTF-8
        raise InvalidRequest(f"--options-file={path} cannot be read: {error}") from None
    if "\0" in text:
        raise InvalidRequest(f"--options-file={path}: it holds a NUL byte")
    if not any(character in text for character in _QUOTES):
        for blank in "\t\r\n":
            text = text.replace(blank, " ")
        return [word for word in text.split(" ") if word]
    import shlex  # which takes longer to import than all else of a hit

    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidRequest(f"--options-file={path}: {error}") from None
