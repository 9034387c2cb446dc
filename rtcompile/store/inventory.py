"""Lists, checks, copies and empties a cache directory."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from rtcompile.files import sealed
from rtcompile.files.sealed import USE_RESOLUTION
from rtcompile.request import object_code
from rtcompile.request.object_code import ObjectCode
from rtcompile.store import evict, locks
from rtcompile.store.evict import HEADERS
from rtcompile.store.folder import FOLDERS, JOURNAL, Folder

# --- The headers inside NVRTC as folders of the cache ---------------------------------------------

# They are used by path, hence only where no other user could exchange them.

# A build that begins within the clock's tick in which a header was written is not kept.
_TICK_SECONDS = 0.01


def find(cache_dir: str, name: str) -> str | None:
    """Return the path of the headers of that name, with or without its size, and note their use."""
    if sealed.can_be_swapped(cache_dir):
        return None
    folder = Folder(cache_dir)
    for stored_as, status in folder.listing(HEADERS):
        if name in (stored_as, stored_as.rpartition("-")[0]):
            path = folder.file(HEADERS, stored_as)
            with suppress(OSError):
                os.close(sealed.open_folder(path))
                if time.time() - status.st_mtime > USE_RESOLUTION:
                    with suppress(OSError):  # read-only
                        os.utime(path)
                return path
    return None


def publish(cache_dir: str, name: str, write: Callable[[str], None]) -> str | None:
    """Have `write` fill a new folder, rename it, and return its path; None if others could replace it."""
    folder = Folder(cache_dir)
    folder.prepare()
    if sealed.can_be_swapped(cache_dir):
        return None
    made = tempfile.mkdtemp(prefix=".", dir=folder.file(HEADERS))
    try:
        write(made)
        size = sum(os.stat(path).st_size for path in _files(made))
        with suppress(OSError):  # another process was faster
            os.rename(made, folder.file(HEADERS, f"{name}-{size}"))
    finally:
        shutil.rmtree(made, ignore_errors=True)
    time.sleep(_TICK_SECONDS)
    return find(cache_dir, name)


def _files(top: str) -> Iterator[str]:
    for folder, _, names in os.walk(top):
        yield from (os.path.join(folder, name) for name in names)


# --- Lists, checks, copies and empties a cache directory ---------------------------------

_PORTABLE = {"objects": "object", "manifests": "manifest", "portable": "manifest"}
_KINDS = {**_PORTABLE, "index": "index entry", "negative": "negative entry"}
_SEALED = {**_KINDS, "toolchains": "toolchain"}
_ABANDONED_SECONDS = 3600.0  # a temporary file of this age has no writer any more


@dataclass(frozen=True, slots=True)
class Usage:
    """The cache's statistics: bytes on disk and counts.

    `fetched` counts builds out of shared stores, `failures` those in the negative cache.
    """

    size: int
    hits: int
    misses: int
    fetched: int
    failures: int


@dataclass(frozen=True, slots=True)
class Entry:
    """An object in the cache."""

    key: str  # its file's name
    name: str
    size: int  # bytes of the file
    used: float  # last use, in seconds since the epoch, to the hour
    obj: ObjectCode
    key_inputs: Mapping[str, str]


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
    looking = Folder(folder.path, writable=False)  # reading it does not count as use
    for path, status in stored(folder):
        kind, key = path.split("/")
        data = looking.read(kind, key) if kind == "objects" else None
        decoded = object_code.decode(key, data) if data is not None else None
        if decoded is not None:
            assert data is not None
            inputs = object_code.key_inputs(key, data)
            yield Entry(key, decoded[0], status.st_size, status.st_mtime, decoded[1], inputs)


def unusable(folder: Folder) -> Iterator[tuple[str, bool]]:
    """Yield the path of every file that must not be used, and whether another version wrote it."""
    looking = Folder(folder.path, writable=False)
    for path, _ in _stored(folder, _SEALED):
        kind, key = path.split("/")
        data = looking.read(kind, key)
        if data is None:
            if os.path.lexists(folder.file(path)):  # else it was evicted just now
                yield path, False
        elif sealed.unseal(_SEALED[kind], key, data) is None:
            yield path, sealed.is_of_another_version(_SEALED[kind], data)


def remove_damaged(folder: Folder) -> list[str]:
    """Remove what is damaged or must not be used, and return the paths."""
    found = [path for path, of_another_version in unusable(folder) if not of_another_version]
    for path in found:
        folder.discard(*path.split("/"))
    return [folder.file(path) for path in found]


def usage(folder: Folder, counts: tuple[int, int, int]) -> Usage:
    """Return the statistics; `counts` has hits, builds and fetched builds."""

    return Usage(evict.size(folder), *counts, len(folder.listing("negative")))


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
    for kind in FOLDERS:
        if kind not in ("locks", "reproducers"):
            for name, _ in folder.listing(kind):
                evict.discard(folder, kind, name)


def sweep(folder: Folder) -> None:
    """Remove what killed processes left: old temporary files, and locks that no process holds."""
    for kind in (*_SEALED, "sources", "statistics"):
        for name, status in folder.listing(kind):
            temporary = name.startswith((".", f"{JOURNAL[1]}-"))
            if temporary and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                folder.discard(kind, name)
    for name, status in folder.listing(HEADERS):
        if name.startswith(".") and time.time() - status.st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(folder.file(HEADERS, name), ignore_errors=True)
    # Locks with a file each, where ranges of a file cannot be locked.
    for name in {name for name, _ in folder.listing("locks")} - {locks.TABLE}:
        with locks.machine_wide(folder.file("locks", name), timeout=0.0):
            pass  # no process held it; leaving the block removes it
