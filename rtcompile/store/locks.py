"""Locks that let one thread of one process build a key, and that are released when the process ends."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rtcompile import forks
from rtcompile.errors import warn
from rtcompile.files import sealed


class Busy(Exception):
    """Another thread, process or node is building the same code, and the caller can do other builds first."""


MAX_WAIT_SECONDS = 900.0  # seconds to wait for another process's build, before building too

TABLE = "table"  # the lock file for all keys

_FLOCK = struct.Struct("hhqqi4x")  # C's struct flock: kind, whence, start, length, process
_ranges_work = True
_held: set[int] = set()


@forks.in_child
def _forget_in_child() -> None:
    # A forked child inherits the lock's open file, and would keep the lock after the parent has ended.
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


@contextmanager
def machine_wide(path: str, timeout: float = MAX_WAIT_SECONDS) -> Iterator[bool]:
    """Hold the lock file at `path` against other processes; yield whether it could be locked in time."""
    descriptor = take(path, timeout)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            release(path, descriptor)


def release(path: str, descriptor: int) -> None:
    """Release a lock."""
    # In a forked child the descriptor is closed, and the parent has the lock.
    if descriptor in _held:
        _held.discard(descriptor)
        # The file is removed while it is locked, so waiting processes notice that it is gone.
        sealed.discard(path)
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


# Whether locks work, by device, and the device of a folder. Some network file systems have none. On others a lock waits in the kernel without
# limit for a server that is gone.
_working: dict[int, bool] = {}
_devices: dict[str, int] = {}
_MOST_TRIED_SECONDS = 1.0


def _locks_work(folder: str) -> bool:
    """Return whether locks work in a folder: try one for up to a second, and warn once if it fails."""
    try:
        if folder not in _devices:
            _devices[folder] = os.stat(folder).st_dev
    except OSError:
        return False
    device = _devices[folder]
    known = _working.get(device)
    if known is not None:
        return known
    problems: list[str] = []
    trying = threading.Thread(target=_try, args=(folder, problems), daemon=True)
    try:
        trying.start()
    except RuntimeError:
        return False  # no more threads: this build has no locks, and the next one tries again
    trying.join(_MOST_TRIED_SECONDS)
    trying.join(_MOST_TRIED_SECONDS / 4)  # another thread may have held the GIL all this time
    problem = f"a lock did not respond in {_MOST_TRIED_SECONDS:g} s" if trying.is_alive() else ""
    problem = problem or "".join(problems)
    _working[device] = not problem
    if problem:
        warn(
            f"locks in {folder} do not work ({problem}): processes that need the same build at "
            "once may each compile it. Set RTCOMPILE_CACHE_DIR to a local disk, and "
            "RTCOMPILE_REMOTE to a store that nodes share"
        )
    return not problem


def _try(folder: str, problems: list[str]) -> None:
    path = os.path.join(folder, f".try-{os.getpid()}-{threading.get_ident()}")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return  # the folder cannot be written, for which there is another warning
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        problems.append(str(error.strerror or error))
    finally:
        os.close(descriptor)
        sealed.discard(path)


@contextmanager
def of_key(
    folder: str, key: str, timeout: float, taken: dict[tuple[int, str], int]
) -> Iterator[bool]:
    """Hold a key's lock, a byte of one lock file, against other processes; `taken` lists the caller's own locks."""
    # One file per key would take a third of the time of a batch of a thousand (ext4 skips inodes that were just
    # freed). If an interrupt left a ``with`` block unfinished, its thread may take the lock again.
    here = threading.get_ident(), key
    where = os.SEEK_SET, int(key[:15], 16), 1, 0
    locking, unlocking = _FLOCK.pack(fcntl.F_WRLCK, *where), _FLOCK.pack(fcntl.F_UNLCK, *where)

    def lock(descriptor: int, _: str) -> bool:
        global _ranges_work
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, locking)
        except OSError as error:
            # gVisor has no open file description locks.
            _ranges_work = error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
            raise
        taken[here] = descriptor
        return True

    try:
        if _ranges_work and taken.get(here) not in _held:
            take(f"{folder}/{TABLE}", timeout, lock)
        if _ranges_work:
            yield taken.get(here) in _held
            return
    finally:
        # otherwise as in `release`
        if here in taken and (descriptor := taken[here]) in _held:
            del taken[here]
            # Python handles Ctrl-C after a call or at a function's start, so not before this call is done.
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, unlocking)
            _held.discard(descriptor)
            os.close(descriptor)
    with machine_wide(f"{folder}/{key}", timeout) as held:
        yield held


def _lock_file(descriptor: int, path: str) -> bool:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    try:  # the previous holder may have removed the file that was locked here
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def take(path: str, timeout: float, lock: Callable[[int, str], bool] = _lock_file) -> int | None:
    """Take the lock as `machine_wide` does; return its descriptor, or None."""
    if not _locks_work(os.path.dirname(path)):
        return None
    deadline = time.monotonic() + timeout
    pause = 0.001
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        try:
            descriptor = os.open(path, flags, 0o600)
        except OSError:
            return None
        try:
            if lock(descriptor, path):
                _held.add(descriptor)
                return descriptor
        except OSError as error:
            is_held = error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)
            if not is_held or time.monotonic() > deadline:
                os.close(descriptor)
                return None
            time.sleep(pause)  # a blocking flock has no timeout
            pause = min(2 * pause, 0.02)  # many processes of a node may be waiting
        except BaseException:
            _held.discard(descriptor)
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextmanager
def held_by_thread(lock: Any, timeout: float | None = None) -> Iterator[bool]:
    """Hold a reentrant lock against other threads; yield whether it could be locked in time."""
    # If an interrupt left it locked, its thread can lock it again.
    most = -1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)
    try:
        yield lock.acquire(timeout=most)
    finally:
        with suppress(RuntimeError):  # another thread took longer
            lock.release()
