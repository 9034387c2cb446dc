"""Counts hits and builds of a cache directory, by diskcache in SQLite, and nothing else.

No build needs them: without diskcache, or with a damaged database, only counts are lost. Values are
bytes, and nothing is ever unpickled (CVE-2025-69872).
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

import diskcache

from rtcompile.store.folder import Counts, Folder

_LOCK_SECONDS = 1.0  # to wait for another process's transaction, which takes milliseconds

_T = TypeVar("_T")

_NONE = Counts()
_NUMBER = struct.Struct("<q")


class StatisticsError(Exception):
    """The statistics are locked, or their storage cannot hold a database."""


class _PlantedError(Exception):
    """The database has a row that rtcompile did not write."""


class _BytesDisk(diskcache.Disk):  # type: ignore[misc]
    """Stores text keys and bytes in SQLite; diskcache's own Disk opens pickles and files that a row names."""

    def put(self, key: Any) -> tuple[str, bool]:
        if type(key) is not str:
            raise TypeError(f"statistics are kept under str, not {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: bool) -> str:
        if not raw or type(key) is not str:
            raise _PlantedError("a key that is not text")
        return key

    def store(self, value: Any, read: bool, key: Any = None) -> tuple[int, int, None, Any]:  # noqa: ARG002  # diskcache's signature
        if type(value) is not bytes:
            raise TypeError(f"statistics are bytes, not {type(value).__name__}")
        return 0, diskcache.core.MODE_RAW, None, sqlite3.Binary(value)

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> bytes:  # noqa: ARG002  # diskcache's signature
        if mode != diskcache.core.MODE_RAW or filename is not None or type(value) is not bytes:
            raise _PlantedError("a value that is not bytes")
        return value

    def remove(self, file_path: str) -> None:  # noqa: ARG002  # diskcache's signature
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


class Statistics:
    """The counts of one cache directory; every method opens, acts and closes, in some 5 ms."""

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
        except Exception:  # noqa: BLE001, S110  # a damaged or planted database can raise anything
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
