"""What lies in a cache directory: list it, check it, copy it, empty it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rtcompile.cache import files, locks, objects
from rtcompile.cache.folder import Folder
from rtcompile.core.request import ObjectCode

__all__ = ["Entry", "damaged", "empty", "entries", "export", "sweep"]

_KINDS = {"objects": "object", "manifests": "manifest"}
_ABANDONED_SECONDS = 3600.0  # a temporary file this old has no writer


@dataclass(frozen=True, slots=True)
class Entry:
    """An object in the cache.

    Attributes
    ----------
    key : str
        The object's key, its file's name.
    name : str
        The program's name.
    size : int
        Bytes of the file.
    used : float
        Last use, in seconds since the epoch, to the hour.
    obj : ObjectCode
        The object.
    asked : mapping of str to str
        The question that it answers, in words (`Question.summary`).
    """

    key: str
    name: str
    size: int
    used: float
    obj: ObjectCode
    asked: Mapping[str, str]


def stored(folder: Folder) -> Iterator[tuple[str, os.stat_result]]:
    """Yield (path below the directory, stat) of every object and manifest."""
    for kind in _KINDS:
        for name, status in _listing(folder.file(kind)):
            if not name.startswith("."):
                yield f"{kind}/{name}", status


def _listing(path: str) -> Iterator[tuple[str, os.stat_result]]:
    try:
        names = os.listdir(path)
    except OSError:
        return
    for name in names:
        try:
            yield name, os.lstat(f"{path}/{name}")
        except OSError:
            continue  # evicted a moment ago


def entries(folder: Folder) -> Iterator[Entry]:
    """Yield every object that verifies."""
    for path, status in stored(folder):
        kind, key = path.split("/")
        data = files.read(folder.file(path)) if kind == "objects" else None
        decoded = objects.decode(data) if data is not None else None
        if decoded is not None:
            assert data is not None
            asked = objects.asked(data)
            yield Entry(key, decoded[0], status.st_size, status.st_mtime, decoded[1], asked)


def damaged(folder: Folder) -> Iterator[str]:
    """Yield the path below the directory of every file that does not verify."""
    for path, _ in stored(folder):
        data = files.read(folder.file(path))
        if data is not None and files.unseal(_KINDS[path.split("/")[0]], data) is None:
            yield path


def export(folder: Folder, target: Folder) -> int:
    """Copy every file that verifies into another cache directory; return how many.

    A machine with the same toolkit, at any place, finds them there without compiling.
    """
    target.prepare()
    count = 0
    bad = set(damaged(folder))
    for path, _ in stored(folder):
        data = files.read(folder.file(path))
        if data is not None and path not in bad:
            files.publish(target.file(path), data)
            count += 1
    return count


def empty(folder: Folder) -> None:
    """Remove objects, manifests, precompiled headers and books; whoever is building goes on."""
    for kind in ("objects", "manifests", "pch", "books"):
        for name, _ in _listing(folder.file(kind)):
            files.discard(folder.file(kind, name))


def sweep(folder: Folder) -> None:
    """Remove what killed processes left: temporary files of an hour ago, locks that nobody holds."""
    for kind in _KINDS:
        for name, status in _listing(folder.file(kind)):
            if name.startswith(".") and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                files.discard(folder.file(kind, name))
    for name, _ in _listing(folder.file("locks")):
        with locks.machine_wide(folder.file("locks", name), patience=0.0):
            pass  # taken, so nobody's; letting go removes it
