"""The cache's directory, which belongs to this user or root, with folders only they can write to.

Every file is opened through the descriptor of its folder, by the rule of `files.sealed`. The mode of the
directory itself is left to the user, since it holds nothing but these folders; no existing folder
is chmodded.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from _thread import allocate_lock

from rtcompile.files import sealed
from rtcompile.files.sealed import UntrustedError
from rtcompile.request import object_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rtcompile.request.object_code import ObjectCode

JOURNAL = ("statistics", "journal")
FOLDERS = (
    "index",
    "objects",
    "negative",
    "manifests",
    "portable",
    "pch",
    "headers",
    "locks",
    "statistics",
    "toolchains",
    "sources",
    "reproducers",
)

_MOST_TRIES = 4  # to append a record, while others take the journal
# To wait for a process that still writes to a journal that is being taken, and may wait for a processor.
_MOST_WAITED_SECONDS = 1.0
MAX_BYTES = 128 << 20  # of a `Memory`
OVERHEAD = 2048  # bytes of an entry besides its code and texts
_RECORD = struct.Struct("<4q")  # hits, builds, fetched builds, bytes written


class Counts:
    """What processes did since the statistics were last updated: the sum of the journal's records."""

    __slots__ = ("fetched", "hits", "lines", "misses", "written")

    def __init__(
        self, lines: int = 0, hits: int = 0, misses: int = 0, fetched: int = 0, written: int = 0
    ) -> None:
        self.lines = lines
        self.hits = hits
        self.misses = misses
        self.fetched = fetched
        self.written = written


class _Opened:
    """A ``with`` block's descriptor of a folder."""

    __slots__ = ("_descriptor", "_folder", "_kind")

    def __init__(self, folder: Folder, kind: str) -> None:
        self._folder = folder
        self._kind = kind

    def __enter__(self) -> int:
        self._descriptor = self._folder.open(self._kind)
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


class Folder:
    """A directory tree; no descriptor of it stays open between two calls."""

    def __init__(self, path: str, *, writable: bool = True) -> None:
        self.path = path
        # Nothing is written before this time (monotonic clock): a write may have failed.
        self.write_at = 0.0 if writable else float("inf")

    @property
    def writable(self) -> bool:
        """Whether something may be written now."""
        return time.monotonic() >= self.write_at

    def file(self, *parts: str) -> str:
        """Return the path of a file, for messages and for programs that take no descriptor."""
        return "/".join((self.path, *parts))

    # --- by descriptor -------------------------------------------------------------------

    def open(self, kind: str) -> int:
        """Return a descriptor of one of `FOLDERS`; raises as `sealed.open_folder`."""
        top = sealed.open_folder(self.path, private=False)
        try:
            return sealed.open_folder(kind, dir_fd=top)
        except UntrustedError as error:
            raise UntrustedError(f"{self.path}/{error}") from None
        finally:
            os.close(top)

    def opened(self, kind: str) -> _Opened:
        """Give a descriptor of one of `FOLDERS`, and close it after the block."""
        return _Opened(self, kind)

    def read(self, kind: str, name: str) -> bytes | None:
        """Return a file's bytes and note its use; None if there is none. Remove an untrusted one."""
        folder = -1
        try:
            folder = self.open(kind)
            return self._read(folder, name)
        except OSError:
            return None
        finally:
            if folder >= 0:
                os.close(folder)

    def object(self, key: str) -> ObjectCode | None:
        """Return the object under a key; None if there is none, and remove a damaged one."""
        data = self.read("objects", key)
        decoded = None if data is None else object_code.decode(key, data)
        if data is not None and decoded is None:
            self.discard("objects", key)
        return None if decoded is None else decoded[1]

    def _read(self, folder: int, name: str) -> bytes | None:
        try:
            descriptor, status = sealed.open_file(name, dir_fd=folder)
        except UntrustedError:
            if self.writable:
                sealed.discard(name, dir_fd=folder)
            return None
        except FileNotFoundError:
            return None
        try:
            data = sealed.contents(descriptor, status.st_size)
            if self.writable and abs(time.time() - status.st_mtime) > sealed.USE_RESOLUTION:
                try:
                    os.utime(descriptor)
                except OSError:  # read-only
                    pass
            return data
        finally:
            os.close(descriptor)

    def publish(self, kind: str, name: str, data: bytes) -> None:
        """Write a file by rename; only a source, which has no digest, waits for the disk."""
        with self.opened(kind) as folder:
            sealed.publish(name, data, dir_fd=folder, durable=kind == "sources")

    def discard(self, kind: str, name: str) -> None:
        """Remove a file if it is there and can be removed."""
        if self.writable:
            try:
                with self.opened(kind) as folder:
                    sealed.discard(name, dir_fd=folder)
            except OSError:
                pass

    def log(self, *, hits: int = 0, misses: int = 0, fetched: int = 0, written: int = 0) -> int:
        """Append a record to the journal at once, in case of a kill; return the number of records."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with self.opened(JOURNAL[0]) as folder:
                for _ in range(_MOST_TRIES):
                    descriptor = os.open(JOURNAL[1], flags | os.O_NONBLOCK, 0o600, dir_fd=folder)
                    try:
                        # Else the file was taken and removed since it was opened.
                        if _lock(descriptor, exclusive=False) and os.fstat(descriptor).st_nlink:
                            os.write(descriptor, _RECORD.pack(hits, misses, fetched, written))
                            return os.fstat(descriptor).st_size // _RECORD.size
                    finally:
                        os.close(descriptor)
        except OSError:
            pass
        return 0

    def journal(self) -> Counts:
        """Return the sum of the journal."""
        try:
            with self.opened(JOURNAL[0]) as folder:
                return _sum(sealed.read(JOURNAL[1], dir_fd=folder))
        except OSError:
            return Counts()

    def take_journal(self) -> Counts:
        """Return the sum of the journal, and start an empty one."""
        taken = f"{JOURNAL[1]}-{os.getpid()}"
        try:
            with self.opened(JOURNAL[0]) as folder:
                os.rename(JOURNAL[1], taken, src_dir_fd=folder, dst_dir_fd=folder)
                flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                descriptor = os.open(taken, flags, dir_fd=folder)
                try:
                    # A process that opened it before may still write.
                    until = time.monotonic() + _MOST_WAITED_SECONDS
                    while not _lock(descriptor, exclusive=True) and time.monotonic() < until:
                        time.sleep(0.001)
                    return _sum(sealed.read(taken, dir_fd=folder))
                finally:
                    sealed.discard(taken, dir_fd=folder)
                    os.close(descriptor)
        except OSError:
            return Counts()

    def listing(self, kind: str) -> list[tuple[str, os.stat_result]]:
        """Return each name in one of `FOLDERS` with its status; none if the folder is not trusted."""
        found = []
        try:
            with self.opened(kind) as folder:
                for name in os.listdir(folder):
                    try:
                        found.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
                    except OSError:  # it has just been evicted
                        pass
        except OSError:
            pass
        return found

    # --- as a whole ----------------------------------------------------------------------

    def check(self) -> bool:
        """Return whether the directory can be read; raise UntrustedError if others may change it."""
        try:
            top = sealed.open_folder(self.path, private=False)
        except UntrustedError:
            raise
        except OSError:
            return False
        try:
            for name in FOLDERS:
                try:
                    status = os.stat(name, dir_fd=top, follow_symlinks=False)
                except OSError:
                    continue
                sealed.judge_folder(f"{self.path}/{name}", status)
        finally:
            os.close(top)
        return True

    def prepare(self) -> None:
        """Make the directory and its folders where they are missing; raise OSError if that fails."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        top = sealed.open_folder(self.path, private=False)
        try:
            for name in FOLDERS:
                try:
                    os.mkdir(name, 0o700, dir_fd=top)
                except FileExistsError:
                    pass
        finally:
            os.close(top)
        self.check()


class Memory:
    """What a process keeps by key; where it has become too large, the oldest is dropped."""

    __slots__ = ("_bytes", "_guard", "_kept")

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[Any, int]] = {}
        self._bytes = 0
        self._guard = allocate_lock()

    def find(self, key: object) -> Any:
        """Return what was kept, or None; whether it still holds is the caller's to check."""
        return self._kept.get(key, (None, 0))[0]

    def keep(self, key: object, value: object, size: int) -> None:
        """Keep a value of so many bytes in place of what was kept before."""
        with self._guard:
            self._bytes += size + OVERHEAD - self._kept.pop(key, (None, 0))[1]
            self._kept[key] = value, size + OVERHEAD
            while self._bytes > MAX_BYTES and len(self._kept) > 1:
                self._bytes -= self._kept.pop(next(iter(self._kept)))[1]


# Objects that the look-ups of this process found and that are not in the journal yet, by the cache's path.
_hits: dict[str, int] = {}


def count_hit(folder: Folder) -> None:
    """Count an object that was found, for the cache's statistics."""
    if not _hits:
        at_end(_write_hits)
    if folder.writable:
        _hits[folder.path] = _hits.get(folder.path, 0) + 1


def at_end(function: Callable[[], object]) -> None:
    """Call a function when this process ends, also in multiprocessing's children, which skip `atexit`."""
    import atexit

    atexit.register(function)
    # A child forgets what its parent registered here, before it does its work.
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None:
        multiprocessing.Finalize(None, function, exitpriority=0)


def take_hits(path: str) -> int:
    """Return the number of hits in a cache since the last call."""
    hits = _hits.get(path, 0)
    if hits:
        _hits[path] = 0
    return hits


os.register_at_fork(after_in_child=_hits.clear)  # the parent writes its own


def _write_hits() -> None:
    for path in list(_hits):
        hits = take_hits(path)
        if hits:
            Folder(path).log(hits=hits)


def _lock(descriptor: int, *, exclusive: bool) -> bool:
    """Return whether the journal could be locked; True if the file system has no locks."""
    import fcntl

    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _sum(journal: bytes) -> Counts:
    lines = list(_RECORD.iter_unpack(journal[: len(journal) // _RECORD.size * _RECORD.size]))
    return Counts(len(lines), *map(sum, zip(*lines, strict=True))) if lines else Counts()
