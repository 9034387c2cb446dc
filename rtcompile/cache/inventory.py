"""Lists, checks, copies, shrinks and empties a cache directory."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rtcompile.cache import bundled, files, locks, objects
from rtcompile.cache.folder import FOLDERS, NOTES, Folder
from rtcompile.core.request import ObjectCode

if TYPE_CHECKING:
    from rtcompile.cache.books import Usage

_PORTABLE = {"objects": "object", "manifests": "manifest", "portable": "manifest"}
_KINDS = {**_PORTABLE, "index": "index entry", "negative": "negative entry"}
_SEALED = {**_KINDS, "toolchains": "toolchain"}
_KEEP = 0.9  # part of the limit that eviction leaves in use, to make room for the next builds
_ABANDONED_SECONDS = 3600.0  # a temporary file of this age has no writer any more


@dataclass(frozen=True, slots=True)
class Entry:
    """An object in the cache."""

    key: str  # its file's name
    name: str
    size: int  # bytes of the file
    used: float  # last use, in seconds since the epoch, to the hour
    obj: ObjectCode
    asked: Mapping[str, str]


def stored(folder: Folder) -> Iterator[tuple[str, os.stat_result]]:
    """Yield (path below the directory, stat) of every object, manifest, index entry and negative entry."""
    yield from _stored(folder, _KINDS)


def _stored(folder: Folder, kinds: Iterable[str]) -> Iterator[tuple[str, os.stat_result]]:
    for kind in kinds:
        for name, status in folder.listing(kind):
            if not name.startswith("."):
                yield f"{kind}/{name}", status


def entries(folder: Folder) -> Iterator[Entry]:
    """Yield every object that verifies."""
    looking = Folder(folder.path, writable=False)  # so that listing does not count as use
    for path, status in stored(folder):
        kind, key = path.split("/")
        data = looking.read(kind, key) if kind == "objects" else None
        decoded = objects.decode(key, data) if data is not None else None
        if decoded is not None:
            assert data is not None
            asked = objects.asked(key, data)
            yield Entry(key, decoded[0], status.st_size, status.st_mtime, decoded[1], asked)


def unusable(folder: Folder) -> Iterator[tuple[str, bool]]:
    """Yield the path of every file that must not be used, and whether another version wrote it."""
    looking = Folder(folder.path, writable=False)
    for path, _ in _stored(folder, _SEALED):
        kind, key = path.split("/")
        data = looking.read(kind, key)
        if data is None:
            if os.path.lexists(folder.file(path)):  # else it was evicted just now
                yield path, False
        elif files.unseal(_SEALED[kind], key, data) is None:
            yield path, files.is_of_another_version(_SEALED[kind], data)


def remove_damaged(folder: Folder) -> list[str]:
    """Remove what is damaged or must not be used, and return the paths."""
    found = [path for path, of_another_version in unusable(folder) if not of_another_version]
    for path in found:
        folder.discard(*path.split("/"))
    return [folder.file(path) for path in found]


def usage(folder: Folder, counts: tuple[int, int, int]) -> Usage:
    """Return the statistics, with the books' counts of hits, builds and fetched builds."""
    from rtcompile.cache.books import Usage

    return Usage(size(folder), *counts, len(folder.listing("negative")))


def size(folder: Folder) -> int:
    """Return the bytes of what `stored` yields, and of the headers out of NVRTC."""
    headers = sum(size for _, _, size in bundled.stored(folder))
    return headers + sum(status.st_size for _, status in stored(folder))


def precompiled_size(folder: Folder) -> int:
    """Return the bytes of the precompiled headers; `compilers.precompiled_files` evicts them."""
    return sum(status.st_size for _, status in folder.listing("pch"))


def evict(folder: Folder, limit: int) -> int:
    """Remove the files used longest ago until the rest fits in `limit`; return the bytes freed."""
    found = [(status.st_mtime, path, status.st_size) for path, status in stored(folder)]
    found += [(used, f"{bundled.KIND}/{name}", n) for used, name, n in bundled.stored(folder)]
    goal = max(0, int(limit * _KEEP) - precompiled_size(folder))
    excess = sum(size for _, _, size in found) - goal
    freed = 0
    for used, path, size in sorted(found):
        if freed >= excess:
            break
        kind, name = path.split("/")
        if kind != bundled.KIND:
            folder.discard(kind, name)
        elif bundled.is_in_use(used):
            continue
        else:
            bundled.discard(folder, name)
        freed += size
    return freed


def export(folder: Folder, target: Folder) -> int:
    """Copy every file that verifies into another cache directory; return how many."""
    target.prepare()
    looking = Folder(folder.path, writable=False)
    count = 0
    bad = {path for path, _ in unusable(folder)}
    for path, _ in _stored(folder, _PORTABLE):
        kind, key = path.split("/")
        data = looking.read(kind, key)
        if data is not None and path not in bad:
            target.publish(kind, key, data)
            count += 1
    return count


def empty(folder: Folder) -> None:
    """Remove everything but the reproducers, which the user may want to send; builds go on."""
    for _, name, _ in list(bundled.stored(folder)):
        bundled.discard(folder, name)
    for kind in FOLDERS:
        if kind not in ("locks", "reproducers"):
            for name, _ in folder.listing(kind):
                folder.discard(kind, name)


def sweep(folder: Folder) -> None:
    """Remove what killed processes left: old temporary files, and locks that no process holds."""
    for kind in (*_SEALED, "sources", "books"):
        for name, status in folder.listing(kind):
            temporary = name.startswith((".", f"{NOTES[1]}-"))
            if temporary and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                folder.discard(kind, name)
    for name, status in folder.listing(bundled.KIND):
        if name.startswith(".") and time.time() - status.st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(folder.file(bundled.KIND, name), ignore_errors=True)
    # Locks that are a file each, as where no byte of a file can be locked.
    for name in {name for name, _ in folder.listing("locks")} - {locks.TABLE}:
        with locks.machine_wide(folder.file("locks", name), patience=0.0):
            pass  # no process held it; leaving the block removes it
