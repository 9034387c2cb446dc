"""The cache directory: it belongs to this user or root, and only they can write to its folders.

Folders and files are opened by the rules of `files.sealed`. A folder that no other user can replace is checked once
per process; any other is opened anew for each file, which is opened through its descriptor. Modes of existing
folders are never changed; the directory itself may have any mode, since it contains only these folders.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import RLock
from io import FileIO

from rtcompile import forks
from rtcompile.files import sealed
from rtcompile.files.sealed import UntrustedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    T = TypeVar("T")

STATISTICS, JOURNAL = "statistics", "journal"
FOLDERS = (
    "index",
    "records",
    "objects",
    "programs",
    "pch",
    "headers",
    "locks",
    "statistics",
    "toolchains",
    "sources",
    "reproducers",
)
_FORMER = ("manifests", "portable", "negative")  # folders of the previous format

# Time to wait for a process that has locked the journal, on a busy machine.
_MOST_WAITED_SECONDS = 1.0
MAX_BYTES = 128 << 20  # of a `Memory`
OVERHEAD = 2048  # bytes of an entry in addition to its code and texts


# The folders that were checked in this process, and those that are used by path from now on, by their paths.
_checked: set[str] = set()
_trusted: set[str] = set()
_swappable: dict[str, bool] = {}  # `sealed.can_be_swapped`, by the directory's path


class _Opened:
    """One of `FOLDERS` in a ``with`` block: what its files' names begin with, and to which descriptor they are relative."""

    __slots__ = ("descriptor", "prefix")

    def __init__(self, prefix: str, descriptor: int | None) -> None:
        self.prefix = prefix
        self.descriptor = descriptor

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


class Folder:
    """A directory tree without open descriptors."""

    def __init__(self, path: str, *, writable: bool = True, readable: bool = True) -> None:
        self.path = path
        self.readable = readable
        # Nothing is written before this time (monotonic clock), because a write failed.
        self.write_at = 0.0 if writable else float("inf")

    @property
    def writable(self) -> bool:
        """Whether writing is allowed now."""
        return time.monotonic() >= self.write_at

    def file(self, *parts: str) -> str:
        """Return the path of a file, for messages and for programs that need a path."""
        return "/".join((self.path, *parts))

    # --- single files --------------------------------------------------------------------

    def _opened(self, kind: str) -> _Opened:
        """Return one of `FOLDERS` whose files may be used; raises as `sealed.open_folder`."""
        prefix = f"{self.path}/{kind}/"
        if prefix in _trusted:
            return _Opened(prefix, None)
        # A hit opens each folder once, and needs no further check.
        if is_safe := prefix in _checked and prefix[0] == "/":
            if self.path not in _swappable:
                _swappable[self.path] = sealed.can_be_swapped(self.path)
            is_safe = not _swappable[self.path]
        opened = self.open(kind)
        (_trusted if is_safe else _checked).add(prefix)
        return opened

    def open(self, kind: str) -> _Opened:
        """Open one of `FOLDERS`; raises as `sealed.open_folder`."""
        top = sealed.open_folder(self.path, private=False)
        try:
            return _Opened("", sealed.open_folder(kind, dir_fd=top))
        except UntrustedError as error:
            raise UntrustedError(f"{self.path}/{error}") from None
        finally:
            os.close(top)

    def has(self, kind: str, name: str) -> bool:
        """Return whether a file is there; opening its folder to see that there is none costs six times as much."""
        return self.readable and os.access(self.file(kind, name), os.F_OK)

    def read(self, kind: str, name: str) -> bytes | None:
        """Return a file's bytes and record its use; None if there is none. Remove an untrusted file."""
        if not self.has(kind, name):
            return None
        try:
            with self._opened(kind) as folder:
                descriptor, status = sealed.open_file(folder.prefix + name, folder.descriptor)
        except UntrustedError:
            self.discard(kind, name)
            return None
        except OSError:
            return None
        try:
            data = sealed.contents(descriptor, status.st_size)
            if self.writable:
                sealed.note_use(descriptor, status.st_mtime)
            return data
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def decoded(self, kind: str, name: str, decode: Callable[[str, bytes], T | None]) -> T | None:
        """Return what `decode` makes of a file's name and bytes; None if there is none, and remove a damaged one."""
        data = self.read(kind, name)
        found = None if data is None else decode(name, data)
        if data is not None and found is None:
            self.discard(kind, name)
        return found

    def publish(self, kind: str, name: str, data: bytes) -> None:
        """Write a file by rename. Only sources are synced to disk, because they contain no digest."""
        with self._opened(kind) as folder:
            path, durable = folder.prefix + name, kind == "sources"
            sealed.publish(path, data, dir_fd=folder.descriptor, durable=durable)

    def discard(self, kind: str, name: str) -> None:
        """Remove a file if it is there and can be removed."""
        if self.writable:
            try:
                with self._opened(kind) as folder:
                    sealed.discard(folder.prefix + name, dir_fd=folder.descriptor)
            except OSError:
                pass

    def log(self, counts: Mapping[str, float]) -> int:
        """Append counts to the journal immediately, in case the process is killed; return the journal's size."""
        try:
            with self._journal(exclusive=False) as journal:
                os.write(journal.fileno(), as_lines(counts))
                return os.fstat(journal.fileno()).st_size
        except OSError:
            return 0

    def counts(self) -> dict[str, float]:
        """Return the journal's sums by name."""
        try:
            with self._journal(exclusive=False) as journal:
                return sums(_contents(journal))
        except OSError:
            return {}

    def sum_up(self, more: Mapping[str, float]) -> dict[str, float]:
        """Replace the journal by its sums, without ``written``, and return them; raise OSError if that fails."""
        with self._journal(exclusive=True) as journal:
            found = sums(_contents(journal) + b"\n" + as_lines(more))
            found.pop("written", None)
            lines = as_lines(found)
            # A process that is killed in between leaves sums and some of the lines.
            os.pwrite(journal.fileno(), lines, 0)
            os.truncate(journal.fileno(), len(lines))
            return found

    def _journal(self, *, exclusive: bool) -> FileIO:
        """Open and lock the journal."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        flags |= 0 if exclusive else os.O_APPEND
        with self._opened(STATISTICS) as folder:
            path = folder.prefix + JOURNAL
            descriptor = os.open(path, flags, 0o600, dir_fd=folder.descriptor)
        journal = FileIO(descriptor, "r+")
        try:
            lock(descriptor, _MOST_WAITED_SECONDS, exclusive=exclusive)
        except OSError:  # the file system has no locks
            pass
        return journal

    def listing(self, kind: str) -> list[tuple[str, os.stat_result]]:
        """Return each name in one of `FOLDERS` with its status; nothing if the folder is not trusted."""
        found = []
        try:
            with self.open(kind) as folder:
                for name in os.listdir(folder.descriptor):
                    try:
                        status = os.stat(name, dir_fd=folder.descriptor, follow_symlinks=False)
                        found.append((name, status))
                    except OSError:  # evicted just now
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
        """Make the missing ones of the directory and its folders; raise OSError if that fails."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        top = sealed.open_folder(self.path, private=False)
        try:
            for name in FOLDERS:
                try:
                    os.mkdir(name, 0o700, dir_fd=top)
                except FileExistsError:
                    continue
                if name == "records":
                    import shutil

                    for former in _FORMER:
                        shutil.rmtree(self.file(former), ignore_errors=True)
        finally:
            os.close(top)
        self.check()


class Memory:
    """A process's cache in memory, by key; when it is too large, the oldest value is dropped."""

    __slots__ = ("_bytes", "_guard", "_kept")

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[Any, int]] = {}
        self._bytes = 0
        self._guard = RLock()

    def find(self, key: object) -> Any:
        """Return the value under a key, or None; the caller checks whether it is still valid."""
        return self._kept.get(key, (None, 0))[0]

    def keep(self, key: object, value: object, size: int) -> None:
        """Keep a value of `size` bytes instead of the previous one."""
        with self._guard:
            self._bytes += size + OVERHEAD - self._kept.pop(key, (None, 0))[1]
            self._kept[key] = value, size + OVERHEAD
            while self._bytes > MAX_BYTES and len(self._kept) > 1:
                self._bytes -= self._kept.pop(next(iter(self._kept)))[1]


# Counts of this process that are not in the journal yet, by the cache's path.
_unlogged: dict[str, dict[str, float]] = {}


def count(folder: Folder, **counts: float) -> None:
    """Add to counts that are logged with this process's next build, or at its end."""
    if folder.writable:
        if not _unlogged:
            at_end(_log_all)
        own = _unlogged.setdefault(folder.path, {})
        for name, number in counts.items():
            own[name] = own.get(name, 0) + number


def at_end(function: Callable[[], object]) -> None:
    """Call a function when this process ends, also in multiprocessing's children, which skip `atexit`."""
    import atexit

    atexit.register(function)
    # A child removes the functions that its parent registered here before it starts its work.
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None:
        multiprocessing.Finalize(None, function, exitpriority=0)


def take_counts(path: str) -> dict[str, float]:
    """Return the counts of a cache since the last call."""
    counts = _unlogged.get(path, {})
    if counts:
        _unlogged[path] = {}
    return counts


forks.in_child(_unlogged.clear)  # the parent logs its own counts


def _log_all() -> None:
    for path in list(_unlogged):
        if counts := take_counts(path):
            Folder(path).log(counts)


def lock(descriptor: int, seconds: float, *, exclusive: bool = True) -> bool:
    """Lock a file and return whether that worked in time; raise OSError if the file system has no locks."""
    import fcntl

    deadline = time.monotonic() + seconds
    pause = 0.001
    while True:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        time.sleep(pause)  # a blocking flock has no timeout
        pause = min(2 * pause, 0.02)  # many processes of a node may be waiting


def _contents(journal: FileIO) -> bytes:
    return os.pread(journal.fileno(), os.fstat(journal.fileno()).st_size, 0)


def as_lines(counts: Mapping[str, float]) -> bytes:
    """Return counts in the format of the journal: one per line."""
    return "".join(f"{round(n, 6)} {name}\n" for name, n in counts.items() if n).encode()


def sums(lines: bytes) -> dict[str, float]:
    """Return the sum of each count in the lines."""
    found: dict[str, float] = {}
    for line in lines.decode("utf-8", "replace").split("\n"):
        number, _, name = line.partition(" ")
        try:
            count = float(number)
        except ValueError:  # an incomplete last line, because the disk was full
            continue
        if count - count == 0:  # neither infinite nor not a number, as in a damaged file
            found[name] = found.get(name, 0) + count
    return found
