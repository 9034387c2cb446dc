"""Maintains a cache directory: evicts, lists and empties it.

The least recently used files are evicted first. All folders count except statistics, locks and reproducers, which
the user may want to send. Precompiled headers get the remaining space, and lose it to files in use. Each miss loads
this module, so heavy imports are inside functions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from rtcompile.files import sealed
from rtcompile.files.headers import next_tick
from rtcompile.files.sealed import USE_RESOLUTION
from rtcompile.named import NamedTuple
from rtcompile.request import object_code
from rtcompile.request.object_code import RECORDS, ObjectCode, decode_records
from rtcompile.store.folder import FOLDERS, Folder

HEADERS = "headers"
_FILES = ("objects", "records", "index", "programs", "toolchains", "sources")  # folders of files
_KEEP = 0.9  # the part of the limit to which eviction reduces a cache
_IN_USE_SECONDS = 2 * USE_RESOLUTION  # longer than any build that reads a folder
_RECENT_SECONDS = 86400.0  # files used within this time are not evicted for a precompiled header


class Unit(NamedTuple):
    """Files that are evicted together: their last use, size, folder and names."""

    used: float
    size: int
    kind: str
    names: tuple[str, ...]


def units(folder: Folder) -> Iterator[Unit]:
    """Yield everything in a cache directory that counts towards the limit."""
    for kind in _FILES:
        for name, status in folder.listing(kind):
            if not name.startswith("."):
                yield Unit(status.st_mtime, status.st_size, kind, (name,))
    # The name of a folder of headers contains its size, so its two thousand files need no stat.
    for name, status in folder.listing(HEADERS):
        size = name.rpartition("-")[2]
        if not name.startswith(".") and size.isdecimal():
            yield Unit(status.st_mtime, int(size), HEADERS, (name,))
    # The record of a precompiled header has the time of its last use, and is removed first.
    found: dict[str, list[tuple[str, os.stat_result]]] = {}
    for name, status in sorted(folder.listing("pch"), reverse=True):
        if name.endswith((".record", ".pch")):
            found.setdefault(name.partition(".")[0], []).append((name, status))
    for files in found.values():
        names = tuple(name for name, _ in files)
        yield Unit(files[0][1].st_mtime, sum(s.st_size for _, s in files), "pch", names)


def size(folder: Folder) -> int:
    """Return the size of everything that counts towards the limit."""
    return sum(unit.size for unit in units(folder))


def room_for_precompiled(folder: Folder, limit: int) -> int:
    """Return the bytes that the limit leaves for precompiled headers."""
    recent = time.time() - _RECENT_SECONDS
    others = (u.size for u in units(folder) if u.kind != "pch" and u.used > recent)
    return max(0, int(limit * _KEEP) - sum(others))


def evict(folder: Folder, limit: int) -> int:
    """Remove the least recently used files until the rest takes `_KEEP` of `limit`; return the bytes freed."""
    now = time.time()

    def order(unit: Unit) -> tuple[float, float]:
        latest = now - _RECENT_SECONDS if unit.kind == "pch" else now
        return min(unit.used, latest), unit.used

    found = sorted(units(folder), key=order)
    # A build may be reading the headers in a folder, so they stay, up to half of the limit.
    stay = {u for u in found if u.kind == HEADERS and now - u.used < _IN_USE_SECONDS}
    excess = sum(unit.size for unit in found if unit not in stay) - int(limit * _KEEP)
    excess += min(sum(unit.size for unit in stay), limit // 2)
    freed = 0
    for unit in found:
        if freed < excess and unit not in stay:
            for name in unit.names:
                discard(folder, unit.kind, name)
            freed += unit.size
    return freed


def discard(folder: Folder, kind: str, name: str) -> None:
    """Remove a file, or a folder of headers, which later builds write again."""
    if kind != HEADERS:
        folder.discard(kind, name)
        return
    import shutil

    # Rename the folder first, so no process finds it incomplete.
    path, dying = folder.file(kind, name), folder.file(kind, f".{name}-{os.getpid()}")
    with suppress(OSError):
        with folder.open(kind):
            os.rename(path, dying)
        shutil.rmtree(dying, ignore_errors=True)


# --- The headers inside NVRTC as folders of the cache ---------------------------------------------

# Compilers use them by path, so only if no other user could replace them.


def find(cache_dir: str, name: str) -> str | None:
    """Return the path of the headers with this name, with or without its size, and record their use."""
    if sealed.can_be_swapped(cache_dir):
        return None
    folder = Folder(cache_dir)
    for stored_as, _ in folder.listing(HEADERS):
        if name in (stored_as, stored_as.rpartition("-")[0]):
            path = folder.file(HEADERS, stored_as)
            with suppress(OSError):
                os.close(sealed.open_folder(path))
                sealed.note_use(path)
                return path
    return None


def publish(cache_dir: str, name: str, write: Callable[[str], None]) -> str | None:
    """Let `write` fill a new folder, rename it, and return its path; None if others could replace it."""
    import shutil
    import tempfile

    folder = Folder(cache_dir)
    folder.prepare()
    if sealed.can_be_swapped(cache_dir):
        return None
    made = tempfile.mkdtemp(prefix=".", dir=folder.file(HEADERS))
    try:
        write(made)
        found = (os.path.join(top, name) for top, _, names in os.walk(made) for name in names)
        size = sum(os.stat(path).st_size for path in found)
        with suppress(OSError):  # another process was faster
            os.rename(made, folder.file(HEADERS, f"{name}-{size}"))
    finally:
        shutil.rmtree(made, ignore_errors=True)
    next_tick()  # a build in the clock tick in which a header was written is not cached
    return find(cache_dir, name)


# --- Lists and empties a cache directory --------------------------------------------------

_ABANDONED_SECONDS = 3600.0  # age at which a temporary file counts as abandoned


class Usage(NamedTuple):
    """The cache's statistics: bytes on disk, counts, failures, and counts of stores."""

    size: int
    hits: int
    misses: int
    fetched: int
    failures: int
    stores: Mapping[str, Mapping[str, float]]


class Entry(NamedTuple):
    """An object in the cache."""

    key: str  # its file's name
    name: str
    size: int  # bytes of the file
    used: float  # last use in seconds since the epoch, to the hour
    obj: ObjectCode
    key_inputs: Mapping[str, str]


def entries(folder: Folder) -> Iterator[Entry]:
    """Yield every intact object."""
    looking = Folder(folder.path, writable=False)  # reading here does not count as use
    for key, status in folder.listing("objects"):
        data = looking.read("objects", key) or b""
        obj = object_code.decode(key, data)
        if obj is not None:
            inputs = object_code.key_inputs(key, data)
            name = inputs.get("program", "")
            yield Entry(key, name, status.st_size, status.st_mtime, obj, inputs)


def usage(folder: Folder, counts: Mapping[str, float]) -> Usage:
    """Return the statistics from all counts; the counts of a store are named ``count store``."""
    stores: dict[str, dict[str, float]] = {}
    for name, number in counts.items():
        count, _, store = name.partition(" ")
        if store:
            stores.setdefault(store, {})[count] = number
    hits, misses, fetched = (int(counts.get(name, 0)) for name in ("hits", "misses", "fetched"))
    looking = Folder(folder.path, writable=False)
    listed = [
        looking.decoded(RECORDS, name, decode_records) or () for name, _ in folder.listing(RECORDS)
    ]
    failures = sum(record.failure is not None for found in listed for record in found)
    return Usage(size(folder), hits, misses, fetched, failures, stores)


def empty(folder: Folder) -> None:
    """Remove everything except the reproducers, which the user may want to send; running builds continue."""
    for kind in FOLDERS:
        if kind not in ("locks", "reproducers"):
            for name, _ in folder.listing(kind):
                discard(folder, kind, name)


def sweep(folder: Folder) -> None:
    """Remove old temporary files of killed processes."""
    for kind in (*_FILES, "pch", HEADERS):
        for name, status in folder.listing(kind):
            if name.startswith(".") and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                discard(folder, kind, name)
