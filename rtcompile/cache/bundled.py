"""The headers inside NVRTC as folders of the cache: one for each build of NVRTC, put there at once.

A folder's name states its size, so counting what is in the cache reads no folder of two thousand
files. It is used by path, hence only where no other user could exchange it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from rtcompile.cache.files import USE_RESOLUTION
from rtcompile.cache.folder import Folder
from rtcompile.storage import trusted

KIND = "headers"
_IN_USE_SECONDS = 2 * USE_RESOLUTION  # longer than any build that reads a folder
# A build that begins within the clock's tick in which a header was written is not kept.
_TICK_SECONDS = 0.01


def find(cache_dir: str, name: str) -> str | None:
    """Return the path of the headers of that name, with or without its size, and note their use."""
    if trusted.can_be_swapped(cache_dir):
        return None
    folder = Folder(cache_dir)
    for stored_as, status in folder.listing(KIND):
        if name in (stored_as, stored_as.rpartition("-")[0]):
            path = folder.file(KIND, stored_as)
            with suppress(OSError):
                os.close(trusted.open_folder(path))
                if time.time() - status.st_mtime > USE_RESOLUTION:
                    with suppress(OSError):  # read-only
                        os.utime(path)
                return path
    return None


def publish(cache_dir: str, name: str, write: Callable[[str], None]) -> str | None:
    """Have `write` fill a new folder, rename it, and return its path; None if others could replace it."""
    folder = Folder(cache_dir)
    folder.prepare()
    if trusted.can_be_swapped(cache_dir):
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


def stored(folder: Folder) -> Iterator[tuple[float, str, int]]:
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
    # Renamed first, so no process finds a folder that lacks some of its files.
    path, dying = folder.file(KIND, name), folder.file(KIND, f".{name}-{os.getpid()}")
    with suppress(OSError):
        os.close(folder.open(KIND))
        os.rename(path, dying)
        shutil.rmtree(dying, ignore_errors=True)


def _files(top: str) -> Iterator[str]:
    for folder, _, names in os.walk(top):
        yield from (os.path.join(folder, name) for name in names)
