"""Options files (``--options-file``): their content replaces the option that names them.

If the compiler read the file itself, an edit of that file would change the build without changing
the cache key.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator

from rtcompile.core.header import Header
from rtcompile.errors import InvalidRequest
from rtcompile.lookup import fileset

__all__ = ["read_in"]

_DEEPEST = 8
# An element that is nothing else: "--options-file=a,b", "-optf a". Its value may be the next one.
_NAMES_FILES = re.compile(r"--?(?:options-file|optf)(?:(?:=|\s+)(.*))?", re.DOTALL)


def read_in(options: Iterable[str], headers: list[Header], depth: int = 0) -> tuple[str, ...]:
    """Return options with the words of each ``--options-file`` in its place, and note it in `headers`."""
    read: list[str] = []
    rest = iter(options)
    for option in rest:
        match = _NAMES_FILES.fullmatch(option.strip())
        if match is None:
            read.append(option)
            continue
        names = match[1] or next(rest, "")
        if not names:
            raise InvalidRequest(f"{option!r} names no file")
        if depth >= _DEEPEST:
            raise InvalidRequest(f"--options-file={names}: files name each other {_DEEPEST} deep")
        for name in names.split(","):
            read += read_in(_words(name.strip().strip("\"'"), headers), headers, depth + 1)
    return tuple(read)


def _words(path: str, headers: list[Header]) -> Iterator[str]:
    try:
        header, data, _ = fileset.read(os.path.abspath(path), "user", path)
        headers.append(header)
        text = data.decode()
    except (OSError, ValueError) as error:  # a path with a NUL, a text that is not UTF-8
        raise InvalidRequest(f"--options-file={path} cannot be read: {error}") from None
    if "\0" in text:
        raise InvalidRequest(f"--options-file={path}: it holds a NUL byte")
    try:
        yield from shlex.split(text)
    except ValueError as error:
        raise InvalidRequest(f"--options-file={path}: {error}") from None
