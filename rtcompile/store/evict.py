"""Keeps the whole cache directory within its limit: what was not used for longest goes first.

All folders count but the statistics, the locks and the reproducers, which the user may want to send.
A precompiled header takes the room that the rest leaves, and gives it back to what is in use.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from rtcompile.files.sealed import USE_RESOLUTION
from rtcompile.store.folder import Folder

HEADERS = "headers"
_FILES = ("objects", "manifests", "portable", "index", "negative", "sources", "toolchains")
_KEEP = 0.9  # part of the limit that eviction leaves in use, to make room for the next builds
_IN_USE_SECONDS = 2 * USE_RESOLUTION  # longer than any build that reads a folder
_RECENT_SECONDS = 86400.0  # what was used since gives no room to a precompiled header


class Unit(NamedTuple):
    """What is evicted as a whole: when it was last used, its bytes, its folder, and its names there."""

    used: float
    size: int
    kind: str
    names: tuple[str, ...]


def units(folder: Folder) -> Iterator[Unit]:
    """Yield everything in a cache directory that counts."""
    for kind in _FILES:
        for name, status in folder.listing(kind):
            if not name.startswith("."):
                yield Unit(status.st_mtime, status.st_size, kind, (name,))
    # A folder of headers has its size in its name, so that nobody reads two thousand files.
    for name, status in folder.listing(HEADERS):
        size = name.rpartition("-")[2]
        if not name.startswith(".") and size.isdecimal():
            yield Unit(status.st_mtime, int(size), HEADERS, (name,))
    # The record of a precompiled header tells when it was last used. It goes first.
    found: dict[str, list[tuple[str, os.stat_result]]] = {}
    for name, status in sorted(folder.listing("pch"), reverse=True):
        if name.endswith((".record", ".pch")):
            found.setdefault(name.partition(".")[0], []).append((name, status))
    for files in found.values():
        names = tuple(name for name, _ in files)
        yield Unit(files[0][1].st_mtime, sum(s.st_size for _, s in files), "pch", names)


def size(folder: Folder) -> int:
    """Return the bytes of all that counts."""
    return sum(unit.size for unit in units(folder))


def room_for_precompiled(folder: Folder, limit: int) -> int:
    """Return the bytes that the limit leaves for precompiled headers."""
    recent = time.time() - _RECENT_SECONDS
    others = (u.size for u in units(folder) if u.kind != "pch" and u.used > recent)
    return max(0, int(limit * _KEEP) - sum(others))


def evict(folder: Folder, limit: int) -> int:
    """Remove what was used longest ago until the rest fits in `limit`; return the bytes freed."""
    now = time.time()

    def order(unit: Unit) -> tuple[float, float]:
        is_header = unit.kind == "pch"
        return min(unit.used, now - _RECENT_SECONDS) if is_header else unit.used, unit.used

    found = sorted(units(folder), key=order)
    # A build may be reading the headers in a folder. They stay, and leave half of the limit to others.
    stay = {u for u in found if u.kind == HEADERS and now - u.used < _IN_USE_SECONDS}
    excess = sum(unit.size for unit in found if unit not in stay) - int(limit * _KEEP)
    excess += min(sum(unit.size for unit in stay), limit // 2)
    freed = 0
    for unit in found:
        if freed >= excess:
            break
        if unit in stay:
            continue
        for name in unit.names:
            discard(folder, unit.kind, name)
        freed += unit.size
    return freed


def discard(folder: Folder, kind: str, name: str) -> None:
    """Remove a file, or a folder of headers, which builds that begin afterwards write again."""
    if kind != HEADERS:
        folder.discard(kind, name)
        return
    import shutil

    # Renamed first, so no process finds a folder that lacks some of its files.
    path, dying = folder.file(kind, name), folder.file(kind, f".{name}-{os.getpid()}")
    with suppress(OSError):
        os.close(folder.open(kind))
        os.rename(path, dying)
        shutil.rmtree(dying, ignore_errors=True)
