"""Runs jobs in worker processes; see `system` for what a job is.

There is one zygote per compiler, started by the first job that needs it or in advance by `process.start`. The
caller's own thread waits on the job's socket, so Ctrl-C takes effect at once. Leaving the call in any way kills the
job and removes its files.
"""

from __future__ import annotations

import _socket  # importing `socket` takes 8 ms
import contextvars
import math
import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from rtcompile import forks
from rtcompile.errors import limit_reached
from rtcompile.named import NamedTuple
from rtcompile.request.units import CompileFailure, Limits
from rtcompile.settings import Settings
from rtcompile.workers import process, system
from rtcompile.workers.process import ZygoteProcess

# --- Runs jobs in worker processes ----------------------------------------------------------------

# All locks are reentrant, since a signal handler or a finalizer may build in the thread that it interrupts.

# A signal that arrives just before a wait is handled only after that wait.
MAX_WAIT_SECONDS = 0.25
# A zygote ends a job at its time limit. If it is this late, the caller kills the zygote.
_LATE_SECONDS = 1.5
_BYTES_PER_JOB = 1 << 30  # a CuTe build peaks at 390 MB, one with heavy instantiation at a gigabyte


_Meanwhile = Callable[[], object] | None


# NamedTuples, because defining three dataclasses takes 1.5 ms of the first build.
class Job(NamedTuple):
    """A call of ``"module:function"`` of this package in a separate process; its value is plain, for `marshal`."""

    function: str
    arguments: Mapping[str, Any]
    # What `libraries.load` opens; the zygote does that once, and runs only jobs with the same text.
    loads: str = ""
    # It may run in a process that has run such jobs before (see `zygote`). Its value then has "well" (the process
    # may be reused) and "doubtful" (a new process may give another value). A job with limits always gets a new
    # process.
    reusable: bool = False


class JobResult(NamedTuple):
    """A job's reply: the function's result, and the seconds that the job waited for a slot."""

    value: Any
    queued: float = 0.0


class Crash(NamedTuple):
    """A job without a result: a kind of `CompileFailure` or "load", the signal or 0, the reason, and its stderr."""

    kind: str
    signal: int
    text: str
    stderr: bytes


class Cancelled(BaseException):
    """The job was cancelled. It is not an `Exception`, so handlers do not treat it as a failure."""


class Cancellation:
    """Cancels, from any thread, the running and future jobs of contexts in which it is `current`."""

    current: contextvars.ContextVar[Cancellation | None] = contextvars.ContextVar(
        "rtcompile_cancellation", default=None
    )

    def __init__(self, *, yields: bool = False) -> None:
        self.yields = yields  # other jobs may take the slots of its jobs
        self._lock = threading.RLock()
        self._sockets: set[_socket.socket] = set()
        self._cancelled = False

    def cancel(self) -> None:
        """Kill the jobs; `Cancelled` is raised in their callers."""
        with self._lock:
            self._cancelled = True
            for socket in self._sockets:
                with suppress(OSError):
                    socket.shutdown(_socket.SHUT_RDWR)

    def check(self) -> None:
        """Raise `Cancelled` if `cancel` was called."""
        if self._cancelled:
            raise Cancelled

    @contextmanager
    def over(self, socket: _socket.socket) -> Iterator[None]:
        """Shut the socket down if cancelled in the meantime."""
        with self._lock:
            self._sockets.add(socket)
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._sockets.discard(socket)
            self.check()


class Pool:
    """Limits how many jobs run at once; all pools of a process fork them from the same zygotes."""

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs or default_jobs()
        # The threads with a slot, and what cancels their jobs.
        self._slots: dict[object, Cancellation] = {}
        self._slots_lock = threading.RLock()
        self._freed = threading.Lock()  # released to wake a thread that waits for a slot

    def run(
        self, job: Job | Callable[[], Job], limits: Limits, meanwhile: _Meanwhile = None
    ) -> JobResult | Crash:
        """Run the job (or the job that a callable returns) when a slot is free; an exception kills it."""
        # `meanwhile` is called when the job starts or restarts.
        taker = threading.get_ident()
        if taker in self._slots:  # a signal handler interrupted a job of this thread
            return self.run_beside(job() if callable(job) else job, limits, meanwhile)
        begin = time.monotonic()
        try:
            self._take_slot(taker, Cancellation.current.get() or Cancellation())
            started = time.monotonic()
            limits.after_waiting(started - begin)
            outcome = self.run_beside(job() if callable(job) else job, limits, meanwhile)
        finally:
            # Ctrl-C may arrive between any two bytecodes. A call in C is one bytecode.
            self._slots.pop(taker, None)
            self._wake()
        if isinstance(outcome, JobResult):
            return outcome._replace(queued=started - begin)
        return outcome

    def _take_slot(self, taker: object, cancellation: Cancellation) -> None:
        """Wait for a slot and take it; the caller releases it by removing `taker`."""
        # Jobs that yield leave one slot free, if there are two. Other jobs may take the slots of jobs that yield.
        while True:
            with self._slots_lock:
                yields, taken = cancellation.yields, [*self._slots.values()]
                if len(taken) < (max(1, self.jobs - 1) if yields else self.jobs):
                    self._slots[taker] = cancellation
                    if len(taken) + 1 < self.jobs:
                        self._wake()  # more slots may be free than threads were woken
                    return
                others = [] if yields else [other for other in taken if other.yields]
                for other in others[-1:]:
                    other.cancel()
            self._freed.acquire(timeout=MAX_WAIT_SECONDS)
            cancellation.check()

    def _wake(self) -> None:
        """Wake a thread that waits for a slot before its `MAX_WAIT_SECONDS` are over."""
        with suppress(RuntimeError):  # one is being woken
            self._freed.release()

    def run_beside(
        self, job: Job, limits: Limits, meanwhile: _Meanwhile = None
    ) -> JobResult | Crash:
        """Run the job now, without a slot."""
        # An exit handler that runs after rtcompile's may also build.
        exiting = ZygoteProcess.all_ended
        for _ in range(2):
            try:
                worker = process.zygote_for(job.loads)
            except OSError as error:  # no interpreter, or no more processes
                _raise_limit(error.errno)
                return Crash("start", 0, str(error), b"")
            outcome = _run(worker, job, limits, meanwhile)
            if outcome is not None:
                return outcome
            # It ended after its idle time, or was killed. Start another one, once.
            worker.close()
            if ZygoteProcess.all_ended and not exiting:
                raise SystemExit  # ends a daemon thread silently while the interpreter exits
        text = f"The worker process ended before it returned a result. {worker.last_stderr}".strip()
        return Crash("start", 0, text, b"")


def _run(
    zygote: ZygoteProcess, job: Job, limits: Limits, meanwhile: _Meanwhile
) -> JobResult | Crash | None:
    """Run one job; None if the zygote has ended."""
    left = limits.after_waiting(0.0)
    if left == 0:
        return Crash("timeout", 0, "", b"")
    until = math.inf if left is None else time.monotonic() + left + _LATE_SECONDS
    ours, theirs = process.socket_pair()
    try:
        with (Cancellation.current.get() or Cancellation()).over(ours):
            try:
                _send_job(zygote, job, limits, ours, theirs)
            except OSError as error:
                _raise_limit(error.errno)
                return None
            if meanwhile is not None:
                meanwhile()
            while not _has_message(ours):
                if time.monotonic() > until:
                    zygote.kill()  # It was stopped or hangs; otherwise it would have ended the job.
                    return Crash("timeout", 0, "", b"")
            reply = system.receive(ours)
    except system.NoMessage as error:
        return Crash("start", 0, str(error), b"")
    finally:
        process.hang_up(ours)
        process.close_theirs(theirs)
    if reply is None:
        return None
    (what, *fields), _ = reply
    if what == system.RESULT:
        return JobResult(*fields)
    crash = Crash(*fields)
    if crash.kind in ("start", "load"):
        _raise_limit(crash.signal)
        return crash._replace(signal=0)
    return crash


def _has_message(socket: _socket.socket) -> bool:
    """Return whether a message or the end of file arrives within `MAX_WAIT_SECONDS`."""
    # gevent and eventlet replace functions of `select`, so that other greenlets run meanwhile. eventlet has no poll.
    if not hasattr(select, "poll"):
        return bool(select.select([socket.fileno()], [], [], MAX_WAIT_SECONDS)[0])
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLIN)
    return bool(poll.poll(MAX_WAIT_SECONDS * 1e3))


def _raise_limit(number: int | None) -> None:
    limit = limit_reached(number)
    if limit is not None:
        raise limit


def _send_job(
    zygote: ZygoteProcess, job: Job, limits: Limits, ours: _socket.socket, theirs: _socket.socket
) -> None:
    how = limits.after_waiting(0.0), limits.memory, job.reusable and limits == Limits()
    system.send(ours, dict(job.arguments))
    zygote.send((job.function, *how), theirs.fileno())
    process.close_theirs(theirs)  # otherwise the end of file would never arrive


def default_jobs() -> int:
    """Return how many jobs may run at once: one per core and per gigabyte."""
    cores, memory = len(os.sched_getaffinity(0)), _BYTES_PER_JOB
    with suppress(OSError, ValueError), open("/sys/fs/cgroup/cpu.max") as file:
        quota, period = file.read().split()
        cores = min(cores, -(-int(quota) // int(period)))  # ValueError: "max"
    with suppress(OSError, StopIteration, ValueError), open("/proc/meminfo") as file:
        memory = next(int(x.split()[1]) << 10 for x in file if x.startswith("MemAvailable"))
    with suppress(OSError, ValueError), open("/sys/fs/cgroup/memory.max") as file:
        memory = min(memory, int(file.read()))  # ValueError: "max"
    return max(1, min(cores, memory // _BYTES_PER_JOB))


_pool: Pool | None = None
_pool_lock = forks.lock()


def shared() -> Pool:
    global _pool
    with _pool_lock:
        if _pool is None:
            _pool = Pool(Settings.from_environ().jobs)
        return _pool


def run(
    job: Job | Callable[[], Job], limits: Limits, meanwhile: _Meanwhile = None
) -> JobResult | Crash:
    """Run a job in the process's pool: `Pool.run`."""
    return shared().run(job, limits, meanwhile)


def idle() -> int:
    """Return how many further jobs the process's pool could run now."""
    return shared().jobs - len(shared()._slots)


def slots() -> int:
    """Return how many jobs the process's pool runs at once."""
    return shared().jobs


# The zygotes belong to the parent and end with it; a forked child starts its own.
forks.in_child(lambda: globals().update(_pool=None))


# --- Turns a crash of a worker into a `CompileFailure` that says why ------------------------------


def failure(death: Crash, command: tuple[str, ...], backend: str, limits: Limits) -> CompileFailure:
    """Return the failure for a job that returned no result."""
    # For a build that waited for another one, the limit is the remaining time, with many digits.
    seconds = limits.timeout or 0.0
    reasons = {
        "crash": f"The compiler died by signal {process.meaning_of(death.signal)}."
        if death.signal
        else "The compiler's process exited without a result.",
        "timeout": f"The compiler was killed after its time limit of {round(seconds, 2) or seconds:g} s.",
        "memory": f"The compiler was killed beyond its memory limit of {limits.memory} bytes.",
        "start": f"The compiler could not be run: {death.text}",
    }
    kind = "start" if death.kind == "load" else death.kind
    killed = "memory" if (kind, death.signal) == ("crash", 9) else kind
    return CompileFailure(killed, reasons[kind], command, backend, signal=death.signal or None)
