"""A child of the zygote: runs a job, replies to its caller, and may run another.

Usually each job has its own child, so it cannot affect other jobs. *Reusable* jobs are the exception: NVRTC builds
without limits whose options do not affect the next compile. They reuse the compiler's memory pages, which saves 10
of 28 ms of a small kernel and a seventh of CuTe's 1.5 s. If a later job of a child crashes, or fails with an error
that may not be the source's fault, the zygote repeats it in a new child. Between two jobs the folders and stderr
are emptied; a child that finds a folder there, or has grown, ends.
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


# --- Runs a program with given files. Worker side -------------------------------------------------


_SIGPIPE, _SIGXFSZ = 13, 25


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run one program in the job's empty folder."""
    # The job has the `command` (its first word is the program's path), `environ`, `files` to write first (name to
    # bytes) and `results`, the names of files to read afterwards. The reply's `error` is "" unless the program could
    # not be started, `status` is negative for the signal that ended it, `log` has stdout and stderr, interleaved.
    begin = time.monotonic()
    for name, data in job["files"].items():
        if os.path.dirname(name):
            os.makedirs(os.path.dirname(name), exist_ok=True)
        with open(name, "wb") as file:
            file.write(data)
    temporary = os.path.abspath(os.environ["TMPDIR"])  # a program may change its directory
    try:
        pid = os.posix_spawn(
            job["command"][0],
            job["command"],
            {**job["environ"], "TMPDIR": temporary},
            file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)],
            setsigdef=(_SIGPIPE, _SIGXFSZ),  # Python ignores them
        )
    except OSError as error:
        return {"error": str(error), "status": None, "log": "", "files": {}, "seconds": 0.0}
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    made = {}
    for name in filter(os.path.exists, job["results"]):
        with open(name, "rb") as file:
            made[name] = file.read()
    return {
        "error": "",
        "status": status,
        "log": protocol.log_text(protocol.stderr_text()),
        "files": made,
        "seconds": time.monotonic() - begin,
    }


# --- The child ------------------------------------------------------------------------------------

RETRY = 3  # exit status: repeat the job in a new child

_SIGKILL = 9
_MOST_BYTES = 768 << 20
# A child that uses more memory than this waits only `_LARGE_SECONDS` for its next job.
_SMALL_BYTES = 128 << 20
_LARGE_SECONDS = 1.0
_SECONDS = 30.0  # for all other children


class Order:
    """A caller's job: this end of its socket, and the descriptor of its arguments."""

    def __init__(self, fields: tuple[Any, ...], socket: _socket.socket, arguments: int) -> None:
        self.function, self.timeout, self.memory, self.reusable = fields
        self.socket = socket
        self.arguments = arguments

    def close(self) -> None:
        """Close its descriptors."""
        self.socket.close()
        os.close(self.arguments)


class Child:
    """A child, in the zygote's process."""

    def __init__(
        self, pid: int, channel: _socket.socket, stderr: int, folder: str, lifeline: int
    ) -> None:
        self.pid = pid
        self.channel = channel
        self.lifeline = lifeline  # see `_die_with_zygote`
        self.stderr = stderr
        self.folder = folder
        self.order: Order | None = None
        self.served = 0
        self.killed = False  # it may not have died yet
        self.deadline: float | None = None
        self.memory: int | None = None
        self.failure = "crash"  # its kind if the child dies by itself

    def may_take(self, order: Order) -> bool:
        """Return whether it is idle and may run this job."""
        return self.order is None and not self.killed and order.reusable

    def take(self, order: Order) -> None:
        """Send the child a job."""
        self.order = order
        self.deadline = None if order.timeout is None else time.monotonic() + order.timeout
        self.memory = order.memory
        try:
            descriptors = (order.socket.fileno(), order.arguments)
            protocol.send(self.channel, (order.function, order.reusable), descriptors)
        except OSError:
            pass  # It was killed while idle.

    def finish(self) -> Order | None:
        """Remove and return the child's job, which is done or failed."""
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
            pass  # Only the leader is left, as a zombie.

    def reap(self) -> int:
        """Wait for a child and return its status. Kills its remaining processes."""
        self.kill()  # before reaping, while the group's number is still reserved
        return os.waitpid(self.pid, 0)[1]

    def close(self) -> None:
        """Close its descriptors."""
        self.channel.close()
        os.close(self.lifeline)
        os.close(self.stderr)


def become(
    channel: _socket.socket,
    stderr: int,
    folder: scratch.Scratch,
    name: str,
    zygote: int,
    held: int,
    copies: Iterable[Child | Order],
) -> None:
    """Run jobs as the child, and exit. Never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        # Copies of other jobs' sockets and lifelines would keep these open while this child lives.
        for copy in copies:
            copy.close()
        _die_with_zygote(zygote, held)
        _prefer_for_oom()
        os.dup2(stderr, 2)
        os.chdir(os.open(name, scratch.FOLDER, dir_fd=folder.descriptor))
        status = _serve(channel)
    except BrokenPipeError:
        pass  # cancelled
    finally:
        os._exit(status)


def _serve(channel: _socket.socket) -> int:
    """Run jobs until one is not reusable; return the exit status."""
    served, size = False, 0
    while True:
        channel.settimeout(_SECONDS if size < _SMALL_BYTES else _LARGE_SECONDS)
        try:
            message = protocol.receive(channel)
        except TimeoutError:
            return RETRY  # The zygote may just have sent a job.
        if message is None:
            return 0  # The zygote ends.
        (function, reusable), (number, arguments) = message
        socket = _socket.socket(fileno=number)
        if served and not _as_new():
            return RETRY
        well = False
        try:
            value = resolve(function)(protocol.unpack(arguments))
            well = reusable and value.pop("well")
            if served and value.pop("doubtful"):
                return RETRY
        except BaseException as error:  # noqa: BLE001  # the caller gets the traceback of whatever was raised
            if served:
                return RETRY
            import traceback

            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            report(socket, (protocol.CRASH, "start", getattr(error, "errno", 0), text))
            return 1
        size = _private_bytes("self", _MOST_BYTES)
        stays = well and size < _MOST_BYTES
        if stays:
            # Sent before the reply, so the zygote knows that the job is done when the caller hangs up.
            protocol.send(channel, (protocol.RESULT,))
        protocol.send(socket, (protocol.RESULT, value))
        if not stays:
            return 0
        socket.close()
        served = True


def _as_new() -> bool:
    """Remove the previous job's files and stderr; False if there is anything else."""
    protocol.forget_stderr()
    for name in os.listdir("."):
        if not os.path.isfile(name) or os.path.islink(name):
            return False
        os.unlink(name)
    return True


def _private_bytes(pid: int | str, unknown: int) -> int:
    """Return the private memory of a process."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
    except (OSError, ValueError):
        return unknown
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def resolve(name: str) -> Any:
    """Return the function ``"module:attribute"``, which must be in this package."""
    module, _, attribute = name.partition(":")
    if not module.startswith("rtcompile."):
        raise ValueError(f"{name!r} is not in rtcompile")
    __import__(module)
    return getattr(sys.modules[module], attribute)


def report(
    socket: _socket.socket, message: tuple[Any, ...], descriptors: tuple[int, ...] = ()
) -> None:
    try:
        protocol.send(socket, message, descriptors)
    except OSError:
        pass  # The caller is gone.


def _die_with_zygote(zygote: int, held: int) -> None:
    """Let the kernel kill this job's process group when its zygote ends, even by ``kill -9``."""
    # `held` is the reading end of a pipe whose other end only the zygote has. When that closes, the kernel sends
    # SIGKILL to the group, as long as one of its processes has the reading end open.
    try:
        fcntl.fcntl(held, fcntl.F_SETOWN, -os.getpid())
        fcntl.fcntl(held, fcntl.F_SETSIG, _SIGKILL)
        fcntl.fcntl(held, fcntl.F_SETFL, os.O_RDONLY | os.O_ASYNC)
        os.set_inheritable(held, True)
    except OSError:
        pass  # an emulated Linux kernel
    if os.getppid() != zygote:
        os._exit(1)  # The zygote ended before this took effect.


def _prefer_for_oom() -> None:
    """Tell the kernel to kill this process first when memory runs out."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # A container may forbid it.


def anonymous_bytes(pid: int) -> int:
    """Return the private memory of a child and its descendants."""
    # RLIMIT_AS would count NVRTC's reserved memory, not the sum over nvcc's processes, and crash compilers.
    total = _private_bytes(pid, 0)
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                total += sum(anonymous_bytes(int(child)) for child in file.read().split())
    except (OSError, ValueError):
        pass  # It ended, or the kernel lists no children.
    return total
