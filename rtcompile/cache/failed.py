"""Remembers the sources that a compiler refused, so that one process compiles them only once.

They are kept in memory only. An error on the disk would outlive the facts in it (a package to
install, a path), and such a source is usually edited before the next process starts.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from rtcompile.cache import headers
from rtcompile.core.header import SearchDir
from rtcompile.core.key import Question
from rtcompile.core.units import CompileFailure
from rtcompile.lookup.fileset import FileSet

__all__ = ["Failed", "dependencies_of"]

_MOST = 256
# Regular expressions as texts: compiling these takes 0.3 ms, which only a failure needs.
_NOT_FOUND = r'(?:cannot|could not) open source file "([^"]+)"'
_NOT_FOUND_BY_HOST = "No such file or directory"
# An error with a line is in the source; a compiler can fail otherwise because of the machine.
_OF_THE_SOURCE = r"\(\d+\): (?:catastrophic )?error"


class _Failure(NamedTuple):
    failure: CompileFailure
    read: tuple[FileSet, ...]


class Failed:
    """The failed builds of one process, by question."""

    def __init__(self) -> None:
        self._failures: OrderedDict[object, _Failure] = OrderedDict()

    def find(self, question: Question) -> CompileFailure | None:
        """Return how the build of `question` failed, None if a file has changed since."""
        known = self._failures.get(_key(question))
        if known is None or not all(read.unchanged() for read in known.read):
            return None
        return known.failure

    def remember(
        self, question: Question, failure: CompileFailure, read: Sequence[FileSet]
    ) -> None:
        """Remember a failure that only the question and these files decided."""
        self._failures[_key(question)] = _Failure(failure, tuple(read))
        while len(self._failures) > _MOST:
            self._failures.popitem(last=False)

    def clear(self) -> None:
        """Forget all."""
        self._failures.clear()


def dependencies_of(
    failure: CompileFailure, search: Sequence[SearchDir], *, source: str, name: str
) -> FileSet | None:
    """Return the files that a refusal depends on; None where that is unknown.

    Parameters
    ----------
    failure : CompileFailure
        The compiler's log and its trace.
    search : sequence of SearchDir
        The directories that it searched, in order.
    source, name : str
        The translation unit.
    """
    if failure.kind != "error" or (failure.trace is None and failure.files is None):
        return None
    if not re.search(_OF_THE_SOURCE, failure.log) or _NOT_FOUND_BY_HOST in failure.log:
        return None
    if failure.files is not None:
        return None if failure.files.uncacheable else failure.files
    found = headers.record(failure.trace or (), search, source=source, name=name)
    if found.uncacheable:
        return None
    # A header that was not found may be created later.
    folders = [name.rpartition("/")[0], *(directory.path for directory in search)]
    absent = [
        f"{folder}/{missing}"
        for missing in re.findall(_NOT_FOUND, failure.log)
        for folder in folders
        if folder.startswith("/")
    ]
    return found.replaced(absent=(*found.absent, *absent))


def _key(question: Question) -> tuple[object, ...]:
    compilers = tuple(sorted(question.compilers.items()))
    return question.lookup_key(), compilers, question.linker
