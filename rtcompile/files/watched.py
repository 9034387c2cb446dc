"""Watches the files that a build read for changes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

from rtcompile.errors import InvalidRequest
from rtcompile.files import sealed

_POLL_SECONDS = 0.1
_Signature = tuple[int, int, int, int, int]


class Files:
    """The files that a build read, in their state when `begin` was called, before the build."""

    def __init__(self, *paths: str) -> None:
        self._began = 0
        self._signatures: dict[str, _Signature | None] = dict.fromkeys(paths)

    def begin(self) -> None:
        """Record the state of all known files."""
        self._began = time.time_ns()
        self._signatures = {path: _signature(path) for path in self._signatures}

    def note(self, paths: Iterable[str]) -> None:
        """Watch exactly the files that the last build read."""
        before, self._signatures = self._signatures, {}
        for path in paths:
            if path in before:
                self._signatures[path] = before[path]
                continue
            now = _signature(path)
            edited_meanwhile = now is not None and max(now[0], now[1]) >= self._began
            self._signatures[path] = None if edited_meanwhile else now

    def changed(self) -> bool:
        """Return whether a file was changed, removed or created."""
        return any(_signature(path) != before for path, before in self._signatures.items())

    def wait(self) -> None:
        """Return when a file has changed."""
        while not self.changed():
            time.sleep(_POLL_SECONDS)

    def __iter__(self) -> Iterator[str]:
        return iter(self._signatures)


def _signature(path: str) -> _Signature | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino, found.st_dev


def read_text(file: str) -> str:
    """Return the text of a source, a regular file of UTF-8; errors begin with its path."""
    try:
        data = sealed.read_given(file)
    except OSError as error:
        raise InvalidRequest(f"{file}: {error.strerror or 'not a regular file'}") from None
    return decoded(data, file)


def decoded(data: bytes, file: str) -> str:
    """Return a source's text; an error names the line that is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidRequest(f"{file}:{line}: error: not UTF-8 ({error.reason})") from None
