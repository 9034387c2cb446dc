"""Where jobs keep their files, and that nothing of it stays: whoever was killed, somebody clears up.

A zygote holds a lock on its folder for as long as it or a child lives; a folder that nobody has
locked belonged to processes that were killed.
"""

# ruff: noqa: SIM105 -- `contextlib` costs 3 ms of a worker's 20 ms start.

from __future__ import annotations

import fcntl
import os
import time

TYPE_CHECKING = False  # as type checkers know it; `typing` costs 5 ms
if TYPE_CHECKING:
    from collections.abc import Callable

PREFIX = "rtcompile-"
_CLAIM_SECONDS = 60.0
_SIGKILL = 9


def claim(scratch: str) -> None:
    """Make the scratch folder, and hold a lock on it for as long as this process or a child lives."""
    os.mkdir(scratch, 0o700)
    os.environ["TMPDIR"] = scratch  # NVRTC leaves files there, even after compiling nothing
    fcntl.flock(os.open(scratch, os.O_RDONLY), fcntl.LOCK_EX)


def sweep(folder: str) -> None:
    """Remove scratch folders whose zygote and parent were both killed: nobody holds their lock."""
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if not name.startswith(PREFIX):
            continue
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue  # somebody else's
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # One that was made just now may not have been locked yet.
            if os.fstat(descriptor).st_mtime < time.time() - _CLAIM_SECONDS:
                clear(path)
        except OSError:
            pass  # in use
        finally:
            os.close(descriptor)


def clear(scratch: str) -> None:
    """Clear up after a zygote that was killed itself: its jobs' processes, then their files.

    Its children died with it (`_die_with_parent`), but not what they had started.
    """
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.readlink(f"/proc/{name}/cwd").startswith(scratch + "/"):
                    os.kill(int(name), _SIGKILL)
            except OSError:
                pass  # It has ended, or it is not ours.
    remove_tree(scratch)


def remove_tree(folder: str) -> None:
    """Remove a folder of scratch files; what cannot be removed stays. (`shutil` loads slowly.)"""
    for where, folders, files in os.walk(folder, topdown=False):
        for name in files:
            quietly(os.unlink, os.path.join(where, name))
        for name in folders:
            path = os.path.join(where, name)
            quietly(os.unlink if os.path.islink(path) else os.rmdir, path)
    quietly(os.rmdir, folder)


def quietly(function: Callable[[str], object], path: str) -> None:
    try:
        function(path)
    except OSError:
        pass
