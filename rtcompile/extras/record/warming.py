"""Builds everything in a record, even on a machine without a GPU or the program's folders."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import rtcompile
from rtcompile.extras.record.recording import MOST_HEADER_BYTES, Record
from rtcompile.files import sealed
from rtcompile.files.sealed import content_digest
from rtcompile.named import NamedTuple

_FOLDER = "rtcompile-warm-"
_MOST_WRITTEN_BYTES = 1 << 30  # of headers, for all states of them


class Wanted(NamedTuple):
    """A build of a record."""

    request: rtcompile.CompileRequest
    recorded: rtcompile.types.RecordedBuild
    origin: str  # the line of the program: ``"train.py:12"``
    cost: tuple[float, int]  # milliseconds if recorded, and headers


def warm(
    record: Record,
    *,
    archs: Sequence[str] = (),
    progress: bool | Callable[[int, int, Any], Any] | None = None,
) -> list[rtcompile.ObjectCode]:
    """Build a record in parallel into the cache, for `archs` where the program did not choose one."""
    with requests(record, archs) as found:
        # The most expensive builds start first: none of them is left for the end.
        order = sorted(range(len(found)), key=lambda index: found[index].cost, reverse=True)
        wanted = [found[index].request for index in order]
        done: list[Any] = rtcompile.compile_many(wanted, progress=progress, errors="return")
    by_index = dict(zip(order, done, strict=True))
    outcomes = [by_index[index] for index in range(len(found))]
    for each in found:
        each.recorded.add_to_index(each.request)
    failed = {i: o for i, o in enumerate(outcomes) if not isinstance(o, rtcompile.ObjectCode)}
    if failed:
        results = [None if i in failed else o for i, o in enumerate(outcomes)]
        raise rtcompile.BatchError(failed, results, {i: found[i].request.name for i in failed})
    return outcomes


@contextmanager
def requests(record: Record, archs: Sequence[str] = ()) -> Iterator[list[Wanted]]:
    """Yield the builds of a record; the headers that they need exist in the body of ``with``."""
    with tempfile.TemporaryDirectory(prefix=_FOLDER) as folder:
        relocated = _Relocated(record, folder)
        found = []
        for entry in record.builds:
            milliseconds = entry.get("milliseconds")
            cost = float(milliseconds) if isinstance(milliseconds, (int, float)) else 0.0
            origin, count = str(entry.get("requested at") or ""), len(entry["headers"])
            recorded = rtcompile.types.RecordedBuild(entry)
            for request in recorded.requests(archs, relocated.moved(entry)):
                found.append(Wanted(request, recorded, origin, (cost, count)))
        yield found


class _Relocated:
    """Folders for a record's headers: several if a program rewrites a header during its run."""

    def __init__(self, record: Record, folder: str) -> None:
        self._record = record
        self._folder = folder
        self._written = 0
        self._states: list[dict[str, str]] = []  # of each folder: path to digest

    def moved(self, entry: Mapping[str, Any]) -> Callable[[str], str] | None:
        """Return what names the folder that has a directory's recorded headers; None if they are in place."""
        own = {
            os.path.abspath(path): digest
            for label, _, path, digest in entry["headers"]
            if label.startswith("user")
        }
        if all(self._is_there(*header) for header in own.items()):
            return None
        fitting = (  # a folder that has no other contents for these headers
            number
            for number, state in enumerate(self._states)
            if all(state.get(path, digest) == digest for path, digest in own.items())
        )
        number = next(fitting, len(self._states))
        if number == len(self._states):
            self._states.append({})
        state = self._states[number]
        folder = os.path.join(self._folder, str(number))
        # All directories are moved together, so they stay nested as they were.
        for path, digest in own.items():
            if path not in state:
                self._write(folder + path, path, digest)
                state[path] = digest

        def moved(directory: str) -> str:
            target = folder + os.path.abspath(directory)
            os.makedirs(target, exist_ok=True)
            return target

        return moved

    @functools.cache  # noqa: B019  # the object lives as long as one warming
    def _is_there(self, path: str, digest: str) -> bool:
        try:
            small = os.stat(path).st_size <= MOST_HEADER_BYTES  # /proc/kcore has 128 TiB
            return small and content_digest(sealed.read_given(path)) == digest
        except (OSError, ValueError):  # missing, or a path with a NUL
            return False

    def _write(self, target: str, path: str, digest: str) -> None:
        there = self._is_there(path, digest)
        data = sealed.read_given(path) if there else self._record.contents(digest)
        self._written += len(data)
        if self._written > _MOST_WRITTEN_BYTES:
            problem = "the record's headers, once for each build's, fill the disk"
            raise rtcompile.InvalidRequest(problem)
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "wb") as file:
                file.write(data)
        except (ValueError, OSError) as error:  # a path with a NUL, or below another header's
            problem = f"a header of the record is damaged: {path!r}: {error}"
            raise rtcompile.InvalidRequest(problem) from None
