"""Options files (``--options-file``): their content replaces the option that names them.

If the compiler read the file itself, an edit of that file would change the build without changing
the cache key.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator

from rtcompile.errors import InvalidRequest
from rtcompile.storage import trusted

__all__ = ["read_in"]

_DEEPEST = 8
# An element that is nothing else: "--options-file=a,b", "-optf a". Its value may be the next one.
_NAMES_FILES = re.compile(r"--?(?:options-file|optf)(?:(?:=|\s+)(.*))?", re.DOTALL)


def read_in(options: Iterable[str], depth: int = 0) -> tuple[str, ...]:
    """Return options with each ``--options-file FILE`` replaced by the words in the file.

    Raises
    ------
    InvalidRequest
        A file cannot be read, has a quote without its end, or names itself.
    """
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
            read += read_in(_words(name.strip().strip("\"'")), depth + 1)
    return tuple(read)


def _words(path: str) -> Iterator[str]:
    try:
        text = trusted.read_given(path).decode()
    except OSError as error:
        raise InvalidRequest(f"--options-file={path} cannot be read: {error}") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"--options-file={path} cannot be read: {error}") from None
    if "\0" in text:
        raise InvalidRequest(f"--options-file={path}: it holds a NUL byte")
    try:
        yield from shlex.split(text)
    except ValueError as error:
        raise InvalidRequest(f"--options-file={path}: {error}") from None
