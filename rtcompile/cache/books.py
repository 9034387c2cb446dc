"""What the cache knows of itself: sizes, last use, hits, refusals. Never on a hit's path, never irreplaceable.

diskcache keeps them in SQLite. Lost or damaged books are made again from the files they describe;
only statistics and refusals are lost with them. Values are bytes: nothing in here is ever unpickled.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import struct
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import diskcache

from rtcompile.cache import files, inventory
from rtcompile.cache.folder import HITS, REFUSALS, Folder

__all__ = ["Books", "BooksError", "Usage"]

_LOCK_SECONDS = 1.0  # for another process's transaction, which takes milliseconds
_REFUSAL_SECONDS = 30 * 86400.0  # then NVRTC is asked again: its headers may have changed
_KEEP = 0.9  # of the limit, after eviction: room for the next builds

_T = TypeVar("_T")

_FILE = struct.Struct("<qd")
_NUMBER = struct.Struct("<q")


class BooksError(Exception):
    """The books are locked, or on storage that takes no database."""


class _PlantedError(Exception):
    """A row that we never wrote."""


class _BytesDisk(diskcache.Disk):  # type: ignore[misc]
    """Text keys and bytes in SQLite, nothing else: no pickle is opened, no file is followed.

    diskcache's own Disk unpickles what a row says is a pickle, and deletes the file a row names.
    """

    def put(self, key: Any) -> tuple[str, bool]:
        if type(key) is not str:
            raise TypeError(f"books are kept under str, not {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: bool) -> str:
        if not raw or type(key) is not str:
            raise _PlantedError("a key that is not text")
        return key

    def store(self, value: Any, read: bool, key: Any = None) -> tuple[int, int, None, Any]:
        if type(value) is not bytes:
            raise TypeError(f"books keep bytes, not {type(value).__name__}")
        return 0, diskcache.core.MODE_RAW, None, sqlite3.Binary(value)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> bytes:
        if mode != diskcache.core.MODE_RAW or filename is not None or type(value) is not bytes:
            raise _PlantedError("a value that is not bytes")
        return value

    def remove(self, file_path: str) -> None:
        raise _PlantedError("a value that is a file")


class _Database(diskcache.Cache):  # type: ignore[misc]
    """A cache that closes its connection where opening fails half-way."""

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
    """The cache's statistics: bytes on disk and counts."""

    size: int
    hits: int
    misses: int
    refusals: int


class Books:
    """The books of one cache directory; every method opens, acts and closes, in some 5 ms.

    Kept open they would be a connection per thread that nobody closes. All methods raise
    `BooksError` and nothing else.
    """

    def __init__(self, folder: Folder, size: int) -> None:
        self._folder = folder
        self._size = size
        self._path = folder.file("books")

    def _transact(self, action: Callable[[Any], _T]) -> _T:
        try:
            return self._transact_once(action)
        except (diskcache.Timeout, sqlite3.OperationalError) as error:
            if isinstance(error, diskcache.Timeout) or "locked" in str(error):
                raise BooksError("database is locked") from error
        except Exception:  # whatever a damaged or planted database makes of diskcache
            pass
        try:
            shutil.rmtree(self._path, ignore_errors=True)
            return self._transact_once(action)
        except Exception as error:
            raise BooksError(str(error)) from error

    def _transact_once(self, action: Callable[[Any], _T]) -> _T:
        os.makedirs(self._path, 0o700, exist_ok=True)
        self._await_lock()
        with _Database(self._path) as cache, cache.transact():
            if cache.get("size") is None:
                self._take_stock(cache)
            if hits := self._noted_hits():
                cache.set("hits", _NUMBER.pack(_number(cache, "hits") + hits))
            return action(cache)

    def _noted_hits(self) -> int:
        """Take over what `note_hits` left."""
        note, taken = self._folder.file(*HITS), self._folder.file(*HITS) + ".taken"
        with suppress(FileNotFoundError):
            os.rename(note, taken)  # a process that ends now starts another one
            with open(taken, "rb") as file:
                data = file.read()
            os.unlink(taken)
            return sum(count for (count,) in _NUMBER.iter_unpack(data[: len(data) // 8 * 8]))
        return 0

    def _await_lock(self) -> None:
        """Raise if the database stays locked: diskcache waits a minute for that while it opens."""
        database = os.path.join(self._path, diskcache.core.DBNAME)
        connection = sqlite3.connect(database, timeout=_LOCK_SECONDS, isolation_level=None)
        with closing(connection):
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")

    def _take_stock(self, cache: Any) -> int:
        """Make the books again from the files: new, lost, or damaged."""
        total = 0
        for path, status in inventory.stored(self._folder):
            cache.set(f"file {path}", _FILE.pack(status.st_size, status.st_mtime))
            total += status.st_size
        cache.set("size", _NUMBER.pack(total))
        return total

    def built(self, paths: Iterable[str], *, hits: int = 0, misses: int = 0) -> None:
        """Account for new files (paths below the directory), and for hits and misses; evict."""
        sizes = {}
        for path in paths:
            try:
                sizes[path] = os.stat(self._folder.file(path)).st_size
            except OSError:
                continue

        def note(cache: Any) -> int:
            now = time.time()
            total = _number(cache, "size")
            for path, size in sizes.items():
                row = cache.get(f"file {path}")
                total += size - (_FILE.unpack(row)[0] if row else 0)
                cache.set(f"file {path}", _FILE.pack(size, now))
            cache.set("size", _NUMBER.pack(total))
            for name, more in (("hits", hits), ("misses", misses)):
                if more:
                    cache.set(name, _NUMBER.pack(_number(cache, name) + more))
            return total

        if self._transact(note) + self._elsewhere() > self._size:
            self.evict(self._size)

    def _elsewhere(self) -> int:
        """Bytes of the precompiled headers, which count too and are evicted by their maker."""
        try:
            return sum(entry.stat().st_size for entry in os.scandir(self._folder.file("pch")))
        except OSError:
            return 0

    def evict(self, limit: int) -> int:
        """Remove the longest unused files until all fit in `limit` bytes; return the bytes freed.

        A reader that has a file open keeps it; one that comes later finds none, and builds.
        """

        def remove(cache: Any) -> int:
            entries = sorted(
                (status.st_mtime, path, status.st_size)
                for path, status in inventory.stored(self._folder)
            )
            total = sum(size for _, _, size in entries)
            goal = max(0, int(limit * _KEEP) - self._elsewhere())
            excess = total - goal if total > goal else 0
            freed = 0
            for used, path, size in entries:
                if freed < excess:
                    files.discard(self._folder.file(path))
                    cache.delete(f"file {path}")
                    freed += size
                else:
                    cache.set(f"file {path}", _FILE.pack(size, used))
            cache.set("size", _NUMBER.pack(total - freed))
            return freed

        return self._transact(remove)

    def usage(self) -> Usage:
        """Return the statistics."""

        def read(cache: Any) -> Usage:
            refusals = sum(key.startswith("refusal ") for key in cache)
            size, hits, misses = (_number(cache, name) for name in ("size", "hits", "misses"))
            return Usage(size, hits, misses, refusals)

        return self._transact(read)

    def refusals(self) -> dict[str, str]:
        """Return what NVRTC is known to refuse, and why."""

        def read(cache: Any) -> dict[str, str]:
            found = {}
            for key in list(cache):
                reason = cache.get(key) if key.startswith("refusal ") else None
                if reason is not None:  # not expired
                    found[key.removeprefix("refusal ")] = reason.decode("utf-8", "replace")
            return found

        return self._transact(read)

    def remember_refusal(self, key: str, reason: str) -> None:
        """Note that NVRTC refused, for a month."""

        def write(cache: Any) -> None:
            cache.set(f"refusal {key}", reason.encode(), expire=_REFUSAL_SECONDS)
            with open(self._folder.file(*REFUSALS), "wb"):
                pass  # says that there are some

        self._transact(write)


def _number(cache: Any, name: str) -> int:
    row = cache.get(name)
    return _NUMBER.unpack(row)[0] if row else 0
