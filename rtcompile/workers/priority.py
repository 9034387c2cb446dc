"""A low priority, also where Linux shares processors out among sessions rather than processes.

With "autogroups" a process's nice value counts only among those of its own session; each session
has one too. Worker side.
"""

from __future__ import annotations

import os


def give_way(nice: int) -> None:
    """Begin a session of at least this nice value: others go first."""
    os.setsid()
    os.nice(max(0, nice - os.nice(0)))
    keep()


def keep() -> None:
    """Give this session, which is new, the nice value of its process: that of who started it."""
    nice = os.nice(0)
    if nice <= 0:
        return
    try:
        with open("/proc/self/autogroup", "w") as file:
            file.write(str(nice))
    except OSError:
        pass  # This kernel does not group them.
