"""What a program's forks need: no import of ours is cut in two, and a child counts for itself.

A child of ``os.fork`` has the forking thread alone. What another thread was importing stays locked in
the child for ever, and the child hangs at its first build, which imports the same.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import get_ident

TYPE_CHECKING = False  # as type checkers know it
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

# A thread may itself wait for the one that forks: then the fork goes ahead.
_MAX_WAIT_SECONDS = 10.0


def at_end(function: Callable[[], object]) -> None:
    """Call a function when this process ends, also in multiprocessing's children, which skip `atexit`."""
    import atexit

    atexit.register(function)
    # A child forgets what its parent registered here, before it does its work.
    multiprocessing = sys.modules.get("multiprocessing.util")
    if multiprocessing is not None:
        multiprocessing.Finalize(None, function, exitpriority=0)


def _is_importing(frame: FrameType | None) -> bool:
    """Say whether a thread is inside an import of this package, or inside one that this package does.

    Not documented: the names of `importlib`'s frames. Elsewhere the answer is no, and a fork waits for
    nothing.
    """
    inside = False
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            inside = True
            if str(frame.f_locals.get("name", "")).startswith("rtcompile"):
                return True
        elif inside and str(frame.f_globals.get("__name__", "")).startswith("rtcompile"):
            return True
        frame = frame.f_back
    return False


def _wait_for_imports() -> None:
    """Wait until no other thread is inside an import of ours."""
    own, until = get_ident(), time.monotonic() + _MAX_WAIT_SECONDS
    # Whoever has slept has Python's lock for the next milliseconds, in which it looks and forks.
    time.sleep(0)
    while time.monotonic() < until and any(
        thread != own and _is_importing(frame) for thread, frame in sys._current_frames().items()
    ):
        time.sleep(0.001)


os.register_at_fork(before=_wait_for_imports)
