"""Lists, checks, copies, shrinks and empties a cache directory, and counts hits and builds.

diskcache keeps the counts in SQLite. No hit reads them. A damaged database is replaced by an empty
one, which loses the counts; the size limit does not depend on them. Values are bytes, and nothing is ever
unpickled.

A folder's name states its size, so counting what is in the cache reads no folder of two thousand
files. It is used by path, hence only where no other user could exchange it.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import diskcache

from rtcompile.files import sealed
from rtcompile.files.sealed import USE_RESOLUTION
from rtcompile.request.object_code import ObjectCode
from rtcompile.store import locks, objects
from rtcompile.store.folder import FOLDERS, JOURNAL, Counts, Folder

if TYPE_CHECKING:
    pass


# --- Statistics: counts of hits and builds --------------------------------------------------------

_LOCK_SECONDS = 1.0  # to wait for another process's transaction, which takes milliseconds

_T = TypeVar("_T")

_NONE = Counts()
_NUMBER = struct.Struct("<q")


class StatisticsError(Exception):
    """The statistics are locked, or their storage cannot hold a database."""


class _PlantedError(Exception):
    """The database has a row that rtcompile did not write."""


class _BytesDisk(diskcache.Disk):  # type: ignore[misc]
    """Stores only text keys and bytes in SQLite; opens no pickle and no file that a row names.

    diskcache's own Disk unpickles what a row says is a pickle, and deletes the file a row names.
    """

    def put(self, key: Any) -> tuple[str, bool]:
        if type(key) is not str:
            raise TypeError(f"statistics are kept under str, not {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: bool) -> str:
        if not raw or type(key) is not str:
            raise _PlantedError("a key that is not text")
        return key

    def store(self, value: Any, read: bool, key: Any = None) -> tuple[int, int, None, Any]:
        if type(value) is not bytes:
            raise TypeError(f"statistics are bytes, not {type(value).__name__}")
        return 0, diskcache.core.MODE_RAW, None, sqlite3.Binary(value)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> bytes:
        if mode != diskcache.core.MODE_RAW or filename is not None or type(value) is not bytes:
            raise _PlantedError("a value that is not bytes")
        return value

    def remove(self, file_path: str) -> None:
        raise _PlantedError("a value that is a file")


class _Database(diskcache.Cache):  # type: ignore[misc]
    """A cache that closes its connection where opening fails."""

    def __init__(self, path: str) -> None:
        try:
            super().__init__(
                path,
                timeout=_LOCK_SECONDS,
                disk=_BytesDisk,
                eviction_policy="none",
                size_limit=1 << 62,
                cull_limit=0,
            )
        except BaseException:
            self.close()
            raise


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


class Statistics:
    """The counts of one cache directory; every method opens, acts and closes, in some 5 ms.

    A database that stays open would keep a connection per thread that is never closed. `StatisticsError` is the
    only error that the methods raise.
    """

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._path = folder.file("statistics")

    def _transact(self, action: Callable[[Any], _T]) -> _T:
        try:
            os.makedirs(self._path, 0o700, exist_ok=True)
            os.close(self._folder.open("statistics"))
        except OSError as error:  # another user owns it, or the disk is full
            raise StatisticsError(str(error)) from error
        try:
            return self._transact_once(action)
        except (diskcache.Timeout, sqlite3.OperationalError) as error:
            if isinstance(error, diskcache.Timeout) or "locked" in str(error):
                raise StatisticsError("database is locked") from error
        except Exception:  # a damaged or planted database can make diskcache raise anything
            pass
        try:
            for name, _ in self._folder.listing("statistics"):
                if name.startswith(diskcache.core.DBNAME):
                    self._folder.discard("statistics", name)
            return self._transact_once(action)
        except Exception as error:
            raise StatisticsError(str(error)) from error

    def _transact_once(self, action: Callable[[Any], _T]) -> _T:
        self._await_lock()
        with _Database(self._path) as cache, cache.transact():
            return action(cache)

    def _await_lock(self) -> None:
        """Raise if the database stays locked, since diskcache itself would wait for a minute."""
        database = os.path.join(self._path, diskcache.core.DBNAME)
        connection = sqlite3.connect(database, timeout=_LOCK_SECONDS, isolation_level=None)
        with closing(connection):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")

    def add(self, more: Counts = _NONE) -> tuple[int, int, int]:
        """Add the counts of processes; return the totals of hits, builds and fetched builds."""

        def count(cache: Any) -> tuple[int, int, int]:
            totals = []
            for name in ("hits", "misses", "fetched"):
                added = getattr(more, name)
                row = cache.get(name)
                totals.append((_NUMBER.unpack(row)[0] if row else 0) + added)
                if added:
                    cache.set(name, _NUMBER.pack(totals[-1]))
            return totals[0], totals[1], totals[2]

        return self._transact(count)


# --- The headers inside NVRTC as folders of the cache ---------------------------------------------

KIND = "headers"
_IN_USE_SECONDS = 2 * USE_RESOLUTION  # longer than any build that reads a folder
# A build that begins within the clock's tick in which a header was written is not kept.
_TICK_SECONDS = 0.01


def find(cache_dir: str, name: str) -> str | None:
    """Return the path of the headers of that name, with or without its size, and note their use."""
    if sealed.can_be_swapped(cache_dir):
        return None
    folder = Folder(cache_dir)
    for stored_as, status in folder.listing(KIND):
        if name in (stored_as, stored_as.rpartition("-")[0]):
            path = folder.file(KIND, stored_as)
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
    made = tempfile.mkdtemp(prefix=".", dir=folder.file(KIND))
    try:
        write(made)
        size = sum(os.stat(path).st_size for path in _files(made))
        with suppress(OSError):  # another process was faster
            os.rename(made, folder.file(KIND, f"{name}-{size}"))
    finally:
        shutil.rmtree(made, ignore_errors=True)
    time.sleep(_TICK_SECONDS)
    return find(cache_dir, name)


def stored_headers(folder: Folder) -> Iterator[tuple[float, str, int]]:
    """Yield the last use, name and bytes of each folder of headers."""
    for name, status in folder.listing(KIND):
        size = name.rpartition("-")[2]
        if not name.startswith(".") and size.isdecimal():
            yield status.st_mtime, name, int(size)


def is_in_use(used: float) -> bool:
    """Say whether a build may be reading a folder that was last used then."""
    return time.time() - used < _IN_USE_SECONDS


def discard(folder: Folder, name: str) -> None:
    """Remove a folder of headers; builds that begin afterwards write it again."""
    # Renamed first: a process never finds a folder without some of its files.
    path, dying = folder.file(KIND, name), folder.file(KIND, f".{name}-{os.getpid()}")
    with suppress(OSError):
        os.close(folder.open(KIND))
        os.rename(path, dying)
        shutil.rmtree(dying, ignore_errors=True)


def _files(top: str) -> Iterator[str]:
    for folder, _, names in os.walk(top):
        yield from (os.path.join(folder, name) for name in names)


# --- Lists, checks, copies, shrinks and empties a cache directory ---------------------------------

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
    looking = Folder(folder.path, writable=False)  # reading it does not count as use
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

    return Usage(size(folder), *counts, len(folder.listing("negative")))


def size(folder: Folder) -> int:
    """Return the bytes of what `stored` yields, and of the headers out of NVRTC."""
    headers = sum(size for _, _, size in stored_headers(folder))
    return headers + sum(status.st_size for _, status in stored(folder))


def precompiled_size(folder: Folder) -> int:
    """Return the bytes of the precompiled headers; `compilers.pch_files` evicts them."""
    return sum(status.st_size for _, status in folder.listing("pch"))


def evict(folder: Folder, limit: int) -> int:
    """Remove the files used longest ago until the rest fits in `limit`; return the bytes freed."""
    found = [(status.st_mtime, path, status.st_size) for path, status in stored(folder)]
    found += [(used, f"{KIND}/{name}", n) for used, name, n in stored_headers(folder)]
    goal = max(0, int(limit * _KEEP) - precompiled_size(folder))
    excess = sum(size for _, _, size in found) - goal
    freed = 0
    for used, path, size in sorted(found):
        if freed >= excess:
            break
        kind, name = path.split("/")
        if kind != KIND:
            folder.discard(kind, name)
        elif is_in_use(used):
            continue
        else:
            discard(folder, name)
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
    for _, name, _ in list(stored_headers(folder)):
        discard(folder, name)
    for kind in FOLDERS:
        if kind not in ("locks", "reproducers"):
            for name, _ in folder.listing(kind):
                folder.discard(kind, name)


def sweep(folder: Folder) -> None:
    """Remove what killed processes left: old temporary files, and locks that no process holds."""
    for kind in (*_SEALED, "sources", "statistics"):
        for name, status in folder.listing(kind):
            temporary = name.startswith((".", f"{JOURNAL[1]}-"))
            if temporary and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                folder.discard(kind, name)
    for name, status in folder.listing(KIND):
        if name.startswith(".") and time.time() - status.st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(folder.file(KIND, name), ignore_errors=True)
    # Locks with a file each, where ranges of a file cannot be locked.
    for name in {name for name, _ in folder.listing("locks")} - {locks.TABLE}:
        with locks.machine_wide(folder.file("locks", name), timeout=0.0):
            pass  # no process held it; leaving the block removes it
