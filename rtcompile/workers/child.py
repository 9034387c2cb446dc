"""A child of the zygote: takes a job, answers its caller, and may take another.

A job has a child to itself: what it leaves in its process, and what happens to that, is gone with
it. *Reusable* jobs are the exception: builds by NVRTC whose options are forgotten with them. NVRTC opens
every header again for each compile, so none is as another build found it. To be the next of the
same process spares such a job the pages of the compiler's memory: 10 of 28 ms of a small kernel, a
seventh of CuTe's 1.5 s. They share no more than that memory:

- A child goes on only after a success. Where one that served before dies, or reports what may not
  be the source's fault, the zygote runs the job again in a child of its own, whose result counts.
- Between two jobs the folders and what was written on stderr are emptied; a child that finds
  anything else there does not go on. One that has grown or has served many does not either.
- Jobs with a limit of time or memory are never reusable.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import sys
import time

from rtcompile.workers import protocol, scratch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any


# --- Runs a program in a worker with given files; returns its status and files. Worker side -------


_SIGPIPE, _SIGXFSZ = 13, 25


def run(job: dict[str, object]) -> dict[str, object]:
    """Run one program in the job's empty folder.

    Takes ``command`` (its first word is the program's path), ``environ``, ``files`` to write before
    (name to bytes) and ``results``, the names of files to read after. Returns ``error`` ("" unless
    the program could not be started), ``status`` (minus the signal that ended it), ``log`` (its
    stdout and stderr as they were interleaved), ``files`` (those of the results that exist) and
    ``seconds``.
    """
    begin = time.monotonic()
    files: dict[str, bytes] = job["files"]  # type: ignore[assignment]
    for name, data in files.items():
        if os.path.dirname(name):
            os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(data)
    command: list[str] = job["command"]  # type: ignore[assignment]
    temporary = os.path.abspath(os.environ["TMPDIR"])  # a program may change its directory
    environ: dict[str, str] = {**job["environ"], "TMPDIR": temporary}  # type: ignore[dict-item]
    try:
        pid = os.posix_spawn(
            command[0],
            command,
            environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)],
            setsigdef=(_SIGPIPE, _SIGXFSZ),  # Python ignores them
        )
    except OSError as error:
        return {"error": str(error), "status": None, "log": "", "files": {}, "seconds": 0.0}
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    results: list[str] = job["results"]  # type: ignore[assignment]
    return {
        "error": "",
        "status": status,
        "log": protocol.stderr_text().decode("utf-8", "replace"),
        "files": {name: _read(name) for name in results if os.path.exists(name)},
        "seconds": time.monotonic() - begin,
    }


def _read(name: str) -> bytes:
    with open(name, "rb") as file:
        return file.read()


# --- A child of the zygote: takes a job, answers its caller, and may take another -----------------

RETRY = 3  # exit status: the job is to be done again, by a child of its own

_SIGKILL = 9
_MOST_JOBS = 256
_MOST_BYTES = 768 << 20
# A child that holds more than this waits for its next job no longer than so many seconds.
_SMALL_BYTES = 128 << 20
_LARGE_SECONDS = 1.0


class Order:
    """A job as it was ordered, with our end of its socket and the descriptor of its arguments."""

    __slots__ = (
        "arguments",
        "function",
        "leftovers",
        "memory",
        "reusable",
        "socket",
        "timeout",
        "warm",
    )

    def __init__(self, fields: tuple[Any, ...], socket: _socket.socket, arguments: int) -> None:
        self.function, self.timeout, self.memory, self.warm, self.reusable, *self.leftovers = fields
        self.socket = socket
        self.arguments = arguments

    def close(self) -> None:
        """Let go of its descriptors."""
        self.socket.close()
        os.close(self.arguments)


class Child:
    """A child as the zygote sees it: its `order` or None, jobs `served`, and if `warm` ones fit it."""

    __slots__ = (
        "channel",
        "deadline",
        "failure",
        "folder",
        "killed",
        "lifeline",
        "memory",
        "order",
        "pid",
        "pidfd",
        "served",
        "stderr",
        "warm",
    )

    def __init__(
        self,
        pid: int,
        channel: _socket.socket,
        stderr: int,
        folder: str,
        lifeline: int,
        *,
        warm: bool,
    ) -> None:
        self.pid = pid
        self.channel = channel
        self.lifeline = lifeline  # see `_die_with_zygote`
        self.pidfd = open_pidfd(pid)
        self.stderr = stderr
        self.folder = folder
        self.warm = warm
        self.order: Order | None = None
        self.served = 0
        self.killed = False  # it may not have died yet
        self.deadline: float | None = None
        self.memory: int | None = None
        self.failure = "crash"  # its kind if the child dies by itself

    def may_take(self, order: Order) -> bool:
        """Say whether it waits, and for such an order."""
        if self.order is not None or self.killed or (order.warm and not self.warm):
            return False
        return order.reusable or not self.served

    def take(self, order: Order) -> None:
        """Hand it an order."""
        self.order = order
        self.deadline = None if order.timeout is None else time.monotonic() + order.timeout
        self.memory = order.memory
        try:
            descriptors = (order.socket.fileno(), order.arguments)
            protocol.send(self.channel, (order.function, order.reusable), descriptors)
        except OSError:
            self.served += 1  # It was killed while it waited: that says nothing of the job.

    def finish(self) -> Order | None:
        """Take its order away, when it is done or the child has ended."""
        order, self.order = self.order, None
        self.deadline = self.memory = None
        self.served += 1
        return order

    def kill(self, reason: str = "") -> None:
        """Kill the whole process group: a compiler may have started others."""
        if reason:
            self.failure = reason
        self.killed = True
        try:
            os.killpg(self.pid, _SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # Only the leader is left, which is not reaped yet.

    def reap(self) -> int | None:
        """Return the wait status if the child has ended, else None. Kills what it left running."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self.pid, flags) is None:
            return None
        self.kill()  # before the process id is given back: the group's number is still ours
        return os.waitpid(self.pid, 0)[1]

    def close(self) -> None:
        """Let go of its descriptors."""
        self.channel.close()
        os.close(self.lifeline)
        os.close(self.stderr)
        if self.pidfd is not None:
            os.close(self.pidfd)


def become(
    channel: _socket.socket,
    stderr: int,
    folder: scratch.Scratch,
    name: str,
    zygote: int,
    held: int,
    others: Iterable[Child],
    postponed: Iterable[Order],
) -> None:
    """Be the child: do jobs and exit. Never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        # Other jobs' sockets would look alive for as long as this child is, and so their lifelines.
        for other in others:
            other.channel.close()
            os.close(other.lifeline)
            if other.order is not None:
                other.order.socket.close()
        for later in postponed:
            later.socket.close()
        _die_with_zygote(zygote, held)
        _prefer_for_oom()
        os.dup2(stderr, 2)
        folder.enter_job_folder(name)
        status = _serve(channel)
    except BrokenPipeError:
        pass  # cancelled
    finally:
        os._exit(status)


def _serve(channel: _socket.socket) -> int:
    """Do jobs until one is not reusable; return the exit status."""
    size = 0
    for served in range(_MOST_JOBS):
        channel.settimeout(None if size < _SMALL_BYTES else _LARGE_SECONDS)
        try:
            message = protocol.receive(channel)
        except TimeoutError:
            return RETRY  # A job that was given to it just now is given to another.
        if message is None:
            return 0  # The zygote ends.
        (function, reusable), (number, arguments) = message
        socket = _socket.socket(fileno=number)
        if served and not _as_new():
            return RETRY
        well = False
        try:
            value = resolve(function)(protocol.unpack(arguments))
            if hasattr(value, "__next__"):
                if not _send_parts(channel, socket, value, stays=reusable):
                    return 0
                size = _resident_bytes()
                socket.close()
                continue
            well = reusable and value.pop("well")
            if served and value.pop("doubtful"):
                return RETRY
            answer = protocol.pack(value)
        except BaseException as error:
            if served:
                return RETRY
            import traceback

            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            tell(socket, (protocol.CRASH, "start", getattr(error, "errno", 0), text))
            return 1
        size = _resident_bytes()
        stays = well and served + 1 < _MOST_JOBS and size < _MOST_BYTES
        if stays:
            # Before the caller gets the reply: when he hangs up, the zygote knows that all is well.
            protocol.send(channel, (protocol.ANSWER,))
        protocol.send(socket, (protocol.ANSWER,), (answer,))
        if not stays:
            return 0
        socket.close()
        os.close(answer)
    return 0


def _send_parts(
    channel: _socket.socket, socket: _socket.socket, parts: Any, *, stays: bool
) -> bool:
    """Send the chunks of a reply up to the first failure; return whether this process can go on."""
    for part in parts:
        well, more = part.pop("well"), part.pop("more")
        if not well:
            break
        free = stays and not more and _resident_bytes() < _MOST_BYTES
        if free:
            protocol.send(channel, (protocol.ANSWER,))  # before the caller gets the reply, as above
        protocol.send(socket, (protocol.PART, part))
        if free:
            return True
        if not more or not _as_new():
            break
    protocol.send(socket, (protocol.ANSWER,))
    return False


def _as_new() -> bool:
    """Empty what the job before may have left; say whether there is nothing else."""
    protocol.forget_stderr()
    for name in os.listdir(os.environ["TMPDIR"]):
        path = os.path.join(os.environ["TMPDIR"], name)
        if not os.path.isfile(path) or os.path.islink(path):
            return False
        os.unlink(path)
    return not os.listdir(".")


def _resident_bytes() -> int:
    """Return the private memory of this process; an upper bound where it is unknown."""
    try:
        with open("/proc/self/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
    except OSError:
        return _MOST_BYTES
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def resolve(name: str) -> Any:
    """Return what ``"module:attribute"`` names; only in this package."""
    module, _, attribute = name.partition(":")
    if not module.startswith("rtcompile."):
        raise ValueError(f"{name!r} is not in rtcompile")
    __import__(module)
    return getattr(sys.modules[module], attribute)


def tell(
    socket: _socket.socket, message: tuple[Any, ...], descriptors: tuple[int, ...] = ()
) -> None:
    try:
        protocol.send(socket, message, descriptors)
    except OSError:
        pass  # The caller has gone.


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable when `pid` has ended; None before Linux 5.3."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _die_with_zygote(zygote: int, held: int) -> None:
    """Let the kernel kill this job's process group when its zygote ends, even all at once by -9.

    `held` is the reading end of a pipe whose other end only the zygote has, its lifeline. The kernel
    sends the signal that we ask for here to the whole group when the last writer has gone, for as
    long as any process of the group holds our end: what a compiler starts inherits it.
    """
    try:
        fcntl.fcntl(held, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(held, fcntl.F_SETSIG, _SIGKILL)
        fcntl.fcntl(held, fcntl.F_SETFL, os.O_RDONLY | os.O_ASYNC)
        os.set_inheritable(held, True)
    except OSError:
        pass  # A kernel that only looks like Linux: this process still dies, by the next line.
    import ctypes

    # Safe here only: this signal comes when the parent's *thread* ends, and the zygote has but one.
    ctypes.CDLL(None).prctl(1, _SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != zygote:
        os._exit(1)  # It ended before any of this was asked for.


def _prefer_for_oom() -> None:
    """Tell the kernel to kill this process first when memory runs out."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # A container may forbid it.


def anonymous_bytes(pid: int) -> int:
    """Return the memory that a child and its descendants hold for themselves.

    Watched from outside rather than by RLIMIT_AS: address space counts the gigabytes that NVRTC
    only reserves, a limit would not add up over nvcc's many processes, and a failing `malloc` makes
    a compiler crash in ways that do not say why.
    """
    total = 0
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
        total += (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                total += sum(anonymous_bytes(int(child)) for child in file.read().split())
    except (OSError, ValueError):
        pass  # It ended while we looked, or the kernel lists no children.
    return total
