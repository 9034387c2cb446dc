"""Locks that let one thread of one process build a key, and that are released when the process ends."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rtcompile import forks
from rtcompile.errors import warn
from rtcompile.files import sealed
from rtcompile.store.folder import lock


class Busy(Exception):
    """Another thread, process or node is building the same code, and the caller can do other builds first."""


MAX_WAIT_SECONDS = 900.0  # seconds to wait for another process's build, before building too

_held: set[int] = set()


@forks.in_child
def _forget_in_child() -> None:
    # A forked child inherits the lock's open file, and would keep the lock after the parent has ended.
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


@contextmanager
def machine_wide(
    path: str, timeout: float = MAX_WAIT_SECONDS, taken: dict[tuple[int, str], int] | None = None
) -> Iterator[bool]:
    """Hold the lock file at `path` against other processes; yield whether it could be locked in time.

    `taken` lists the caller's locks: if an interrupt left a ``with`` block unfinished, its thread may take the lock
    again. The file stays, since ext4 takes longer to make a file anew.
    """
    here = threading.get_ident(), path
    taken = {} if taken is None else taken
    try:
        if taken.get(here) not in _held:
            _take(path, timeout, taken, here)
        yield taken.get(here) in _held
    finally:
        # In a forked child the descriptor is closed, and the parent has the lock.
        if here in taken and (descriptor := taken[here]) in _held:
            del taken[here]
            # Python handles Ctrl-C after a call or at a function's start, so not before this call is done.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            _held.discard(descriptor)
            os.close(descriptor)


# Whether locks work, by device, and the device of each folder. Some network file systems have no locks. On others a
# lock waits in the kernel without limit for a server that is gone.
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


def _take(
    path: str, timeout: float, taken: dict[tuple[int, str], int], here: tuple[int, str]
) -> None:
    """Take the lock as `machine_wide` does, if that is possible, and list its descriptor in `taken`."""
    if not _locks_work(os.path.dirname(path)):
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError:
        return
    try:
        if lock(descriptor, timeout):
            _held.add(descriptor)
            taken[here] = descriptor
            return
    except OSError:
        pass
    except BaseException:
        _held.discard(descriptor)
        os.close(descriptor)
        raise
    os.close(descriptor)


@contextmanager
def held_by_thread(guard: Any, timeout: float | None = None) -> Iterator[bool]:
    """Hold a reentrant lock against other threads; yield whether it could be locked in time."""
    # If an interrupt left it locked, its thread can lock it again.
    most = -1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)
    try:
        yield guard.acquire(timeout=most)
    finally:
        with suppress(RuntimeError):  # another thread took longer
            guard.release()
