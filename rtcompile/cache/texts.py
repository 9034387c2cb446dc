"""Headers given as texts become a folder that compilers search, named by what is in it.

The folder lies in the cache, in a folder that no other user may write to; without a cache on disk
it is this process's own. It is put in place in one step, and what is in it is compared with the
texts before its first use: a file that was edited there is never compiled.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from contextlib import suppress

from rtcompile.storage import temporary, trusted
from rtcompile.storage.digest import content_digest

__all__ = ["folder", "remove"]

HeaderTexts = tuple[tuple[str, str], ...]

_KIND = "texts"
_IN_USE_SECONDS = 3600.0  # longer than any build that reads a folder

# Files have times of 4 ms: a build that begins in the one in which a header was written is not
# kept, since the header could have changed while it ran.
_TICK_SECONDS = 0.01

_compared: set[str] = set()  # folders that this process has found to be as they should
_own: list[tuple[int, str]] = []  # this process, and its folder for when there is no cache


def folder(headers: HeaderTexts, cache_dir: str | None) -> str:
    """Return the path of a folder that holds these headers; `cache_dir` is None without a cache."""
    name = _digest(headers)
    if cache_dir is not None:
        with suppress(OSError):  # read-only, full or another's: the process's own will do
            return _placed(_in_cache(cache_dir), name, headers)
    if not _own or _own[0][0] != os.getpid():
        _own[:] = [(os.getpid(), temporary.folder("headers"))]
    return _placed(_own[0][1], name, headers)


def _digest(headers: HeaderTexts) -> str:
    parts = [part.encode() for pair in headers for part in pair]
    return content_digest(b"".join(b"%d:%s;" % (len(part), part) for part in parts))[:32]


def _in_cache(cache_dir: str) -> str:
    os.makedirs(cache_dir, mode=0o700, exist_ok=True)
    top = trusted.open_folder(cache_dir, private=False)
    try:
        with suppress(FileExistsError):
            os.mkdir(_KIND, 0o700, dir_fd=top)
        os.close(trusted.open_folder(_KIND, dir_fd=top))
    finally:
        os.close(top)
    return os.path.join(cache_dir, _KIND)


def _placed(parent: str, name: str, headers: HeaderTexts) -> str:
    path = os.path.join(parent, name)
    if path in _compared and os.path.isdir(path):
        return path
    if _holds(path, headers):
        with suppress(OSError):
            os.utime(path)  # `remove` leaves it to those who are about to read it
    else:
        made = tempfile.mkdtemp(prefix=".", dir=parent)
        try:
            for relative, text in headers:
                file = os.path.join(made, relative)
                os.makedirs(os.path.dirname(file), exist_ok=True)
                with open(file, "wb") as opened:
                    opened.write(text.encode())
            if os.path.lexists(path):
                os.rename(path, os.path.join(made, ".before"))
            with suppress(OSError):  # another process was faster
                os.rename(made, path)
            shutil.rmtree(os.path.join(path, ".before"), ignore_errors=True)
        finally:
            shutil.rmtree(made, ignore_errors=True)
        if not _holds(path, headers):
            raise OSError(f"{path} does not hold the headers that were written to it")
        time.sleep(_TICK_SECONDS)
    _compared.add(path)
    return path


def _holds(path: str, headers: HeaderTexts) -> bool:
    """Say whether a folder holds these headers and nothing else."""
    try:
        found = sum(len(files) for _, _, files in os.walk(path))
        for relative, text in headers:
            with open(os.path.join(path, relative), "rb") as file:
                if file.read() != text.encode():
                    return False
    except OSError:
        return False
    return found == len(headers)


def remove(cache_dir: str) -> None:
    """Remove the folders of a cache, except those that a build may be reading."""
    with suppress(OSError):
        parent = _in_cache(cache_dir)
        for name in os.listdir(parent):
            path = os.path.join(parent, name)
            with suppress(OSError):
                if time.time() - os.stat(path).st_mtime > _IN_USE_SECONDS:
                    shutil.rmtree(path, ignore_errors=True)
