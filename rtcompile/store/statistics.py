"""Sums the counts of all processes (hits, builds, requests to shared stores) with diskcache, in SQLite.

No build needs them: without diskcache, or with a damaged database, only counts are lost. They are one value of
bytes, and nothing is ever unpickled (CVE-2025-69872).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import diskcache

from rtcompile.store.folder import STATISTICS, Folder, as_lines, sums

_LOCK_SECONDS = 1.0  # wait for another process's transaction, which takes milliseconds
_KEY = "counts"


class _BytesDisk(diskcache.Disk):  # type: ignore[misc]
    """Reads text keys and bytes, and rejects other rows: diskcache would open pickles and files."""

    def get(self, key: Any, raw: bool) -> str:
        if not raw or type(key) is not str:
            raise ValueError("a key that is not text")
        return key

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> bytes:  # noqa: ARG002  # diskcache's signature
        if mode != diskcache.core.MODE_RAW or filename is not None or type(value) is not bytes:
            raise ValueError("a value that is not bytes")
        return value

    def remove(self, file_path: str) -> None:  # noqa: ARG002  # diskcache's signature
        raise ValueError("a value that is a file")


def add(folder: Folder, more: Mapping[str, float]) -> dict[str, float]:
    """Add counts to a cache directory's, and return the sums; may raise any exception of diskcache."""
    os.close(folder.open(STATISTICS))
    try:
        return _add(folder.file(STATISTICS), more)
    except Exception as error:  # a damaged or planted database can raise anything
        if "locked" in str(error):
            raise
        for name, _ in folder.listing(STATISTICS):
            if name.startswith(diskcache.core.DBNAME):
                folder.discard(STATISTICS, name)
    return _add(folder.file(STATISTICS), more)


def _add(path: str, more: Mapping[str, float]) -> dict[str, float]:
    # By default diskcache waits a minute for a locked database.
    database = os.path.join(path, diskcache.core.DBNAME)
    with closing(sqlite3.connect(database, timeout=_LOCK_SECONDS, isolation_level=None)) as locked:
        locked.execute("BEGIN IMMEDIATE")
        locked.execute("ROLLBACK")
    cache = diskcache.Cache.__new__(diskcache.Cache)
    with closing(cache):  # also if opening fails
        cache.__init__(
            path,
            timeout=_LOCK_SECONDS,
            disk=_BytesDisk,
            disk_min_file_size=1 << 30,  # no value is a file
            eviction_policy="none",
            size_limit=1 << 62,
            cull_limit=0,
        )
        with cache.transact():
            found = sums((cache.get(_KEY) or b"") + as_lines(more))
            if more:
                cache.set(_KEY, as_lines(found))
            return found
