"""The files of a program that is being edited."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

from rtcompile.files.sealed import stat_of

_POLL_SECONDS = 0.1


class Files:
    """The files that a build read, and their stat signatures when `begin` was called, before the build."""

    def __init__(self, *paths: str) -> None:
        self._began = 0
        self._signatures: dict[str, tuple[int, int, int, int] | None] = dict.fromkeys(paths)

    def begin(self) -> None:
        """Record the stat signatures of all known files."""
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
            edited_meanwhile = now is not None and max(now[1:3]) >= self._began
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


def _signature(path: str) -> tuple[int, int, int, int] | None:
    try:
        return stat_of(os.stat(path))
    except (OSError, ValueError):
        return None
