"""Shell jobs for the tests of workers, and functions that wait for their effects."""

import os
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rtcompile.workers import pool
from rtcompile.workers.pool import Crash, Job, JobResult
from rtcompile.workers.process import ZygoteProcess

FOREVER = "sleep 1000"
# No compiler finishes this source: the mangled name of the parameter doubles with each typedef.
ENDLESS = (
    "typedef int (*F0)(int);\n"
    + "".join(f"typedef F{i} (*F{i + 1})(F{i}, F{i});\n" for i in range(40))
    + "__global__ void k(F40 f) {}"
)


class Fifo:
    """A named pipe through which a shell script reports its progress."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"fifo{os.urandom(4).hex()}"
        os.mkfifo(self.path)

    def read(self) -> str:
        """Wait for the script to write."""
        return self.path.read_text().strip()

    def __str__(self) -> str:
        return str(self.path)


class Pool(pool.Pool):
    """A pool with its own zygotes: those of other pools are hidden until it is closed."""

    def __init__(self, jobs: int) -> None:
        super().__init__(jobs)
        self._others, ZygoteProcess.alive = ZygoteProcess.alive, set()

    @property
    def zygotes(self) -> list[ZygoteProcess]:
        """The processes from which its jobs are forked."""
        return [*ZygoteProcess.alive]

    def close(self) -> None:
        """End every zygote and its jobs, and show those of other pools again."""
        for worker in self.zygotes:
            worker.close()
        ZygoteProcess.alive = self._others


def shell(script: str, **fields: Any) -> Job:
    """A job that runs a shell script; its parent is the worker."""
    arguments = {
        "command": ["/bin/sh", "-c", script],
        "environ": {"PATH": os.environ["PATH"]},
        "files": {},
        "results": fields.pop("results", []),
    }
    return Job("rtcompile.workers.zygote:run", arguments, **fields)


def output(outcome: JobResult | Crash) -> str:
    assert isinstance(outcome, JobResult), outcome
    return str(outcome.value["log"]).strip()


def ended(pid: int | str) -> bool:
    """Wait for a process to end that is not a child of this one."""
    try:
        descriptor = os.pidfd_open(int(pid))
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 60.0)[0])
    finally:
        os.close(descriptor)


def children(pid: int) -> list[int]:
    """Return the processes that threads of a process have started."""
    try:
        texts = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # the process has ended
        return []
    return [int(child) for text in texts for child in text.split()]


def descendants(pid: int) -> list[int]:
    return [each for child in children(pid) for each in (child, *descendants(child))]


def at_once(*functions: Callable[[], Any]) -> list[Any]:
    """Call functions in threads of their own; return the results in the order in which they came."""
    results: list[Any] = []

    def call(function: Callable[[], Any]) -> None:
        results.append(function())

    threads = [threading.Thread(target=call, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def eventually(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    """Poll for a condition, long enough for a busy machine."""
    deadline = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(found)


def until(condition: Callable[[], object]) -> None:
    """Poll for a condition, or fail."""
    assert eventually(condition), "it did not come about within a minute"
