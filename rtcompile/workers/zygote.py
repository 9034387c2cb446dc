"""The zygote: loads one compiler, forks one child per job, and leaves nothing of any job behind.

It has one thread, so forking is safe; it runs no user's code itself, so it outlives every crash.
It ends with its parent, or after an idle while.
"""

# ruff: noqa: SIM105 -- `contextlib` costs 3 ms of a worker's 20 ms start.

from __future__ import annotations

import _socket
import fcntl
import os
import select
import sys
import time

from rtcompile.workers import protocol, scratch

TYPE_CHECKING = False  # as type checkers know it; `typing` costs 5 ms
if TYPE_CHECKING:
    from typing import Any

CONTROL = 3  # the descriptor of the control socket, given by the caller
_SIGKILL = 9
_TICK = 0.05  # seconds between two looks at a child's memory
_PAUSE = 0.1  # seconds without a job before the zygote spends time on making the next one faster
_STACK_BYTES = 64 << 20
_DESCRIPTORS = 4096
_MOST_INHERITED = 65536


def main(arguments: list[str]) -> None:
    """Serve jobs from the control socket until there is no reason to go on."""
    parent, idle, *what = arguments
    _isolate()
    zygote = Zygote(_socket.socket(fileno=CONTROL), int(parent), float(idle), *what)
    try:
        try:
            zygote.prepare()
        except Exception:
            pass  # Tried again for each job, which is told why it fails.
        zygote.serve()
    finally:
        zygote.end()


def resolve(name: str) -> Any:
    """Return what ``"module:attribute"`` names; only in this package."""
    module, _, attribute = name.partition(":")
    if not module.startswith("rtcompile."):
        raise ValueError(f"{name!r} is not in rtcompile")
    __import__(module)
    return getattr(sys.modules[module], attribute)


class Order:
    """A job as it was ordered, with our end of its socket and the descriptor of its arguments."""

    __slots__ = ("arguments", "function", "leftovers", "memory", "socket", "timeout", "warm")

    def __init__(self, fields: tuple[Any, ...], socket: _socket.socket, arguments: int) -> None:
        self.function, self.timeout, self.memory, self.warm, *self.leftovers = fields
        self.socket = socket
        self.arguments = arguments


class Child:
    """A running job, as the zygote sees it."""

    __slots__ = (
        "deadline",
        "death",
        "folder",
        "leash",
        "leftovers",
        "memory",
        "pid",
        "pidfd",
        "socket",
        "stderr",
    )

    def __init__(self, pid: int, order: Order, stderr: int, folder: str, leash: int) -> None:
        self.pid = pid
        self.leash = leash  # see `_die_with_zygote`
        self.pidfd = _open_pidfd(pid)
        self.socket = order.socket
        self.stderr = stderr
        self.folder = folder
        self.leftovers = order.leftovers
        self.deadline = None if order.timeout is None else time.monotonic() + order.timeout
        self.memory = order.memory
        self.death = "crash"  # what its death is called, unless the zygote itself brings it about

    def kill(self, reason: str = "") -> None:
        """Kill the whole process group: a compiler may have started others."""
        if reason:
            self.death = reason
        try:
            os.killpg(self.pid, _SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # Nobody is left but the unreaped leader.

    def reap(self) -> int | None:
        """Return the wait status if the child has ended, else None. Kills what it left running."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self.pid, flags) is None:
            return None
        self.kill()  # before the process id is given back: the group's number is still ours
        return os.waitpid(self.pid, 0)[1]


class Zygote:
    """Supervises its children: limits, cancellation, death, and the clearing up after each."""

    def __init__(
        self,
        control: _socket.socket,
        parent: int,
        idle: float,
        temporary: str,
        name: str,
        function: str,
        argument: str,
    ) -> None:
        self.control = control
        self.parent = parent
        self.idle = idle
        self.temporary = temporary
        self.name = name
        self.function = function  # prepares, with its argument
        self.argument = argument
        self.scratch: scratch.Scratch | None = None
        self.children: dict[int, Child] = {}  # by pid
        self.poller = select.poll()
        self.poller.register(control.fileno(), select.POLLIN)
        # The control socket's end of file is not enough: a process that the parent forked holds it.
        self.parent_fd = _open_pidfd(parent)
        if self.parent_fd is not None:
            self.poller.register(self.parent_fd, select.POLLIN)
        self.improve: Any = None
        self.improved = False
        self.postponed: list[Order] = []
        self.serial = 0

    def prepare(self) -> scratch.Scratch:
        """Have a folder, and in memory what every child will need; return the folder."""
        if self.scratch is None:
            self.scratch = scratch.claim(self.temporary, self.name)
            self.scratch.enter()  # NVRTC leaves files there by itself
        if self.function:
            self.improve = resolve(self.function)(self.argument)
            self.function = ""
        return self.scratch

    def serve(self) -> None:
        """Fork, watch, clear up; return when the parent has gone or nothing came for long."""
        idle_since = time.monotonic()
        while True:
            if self.children:
                timeout = self._next_look()
            elif self.improve is not None and not self.improved:
                timeout = _PAUSE
            else:
                timeout = idle_since + self.idle - time.monotonic()
                if timeout <= 0:
                    return
            ready = dict(self.poller.poll(timeout * 1000))
            if os.getppid() != self.parent or (self.parent_fd in ready):
                return
            if self.control.fileno() in ready and not self._accept():
                return
            if not ready and not self.children:
                self._improve(idle=True)
            for child in list(self.children.values()):
                self._look_after(child, ready)
                idle_since = time.monotonic()

    def _next_look(self) -> float:
        """Return the seconds until some child must be looked at, whatever happens."""
        now = time.monotonic()
        looks = [1.0]
        for child in self.children.values():
            if child.deadline is not None:
                looks.append(max(0.0, child.deadline - now))
            if child.memory is not None or child.pidfd is None:
                looks.append(_TICK if child.pidfd is not None else _TICK / 10)
        # Rounded up: poll() counts in milliseconds, and 0 would spin until the deadline.
        return min(looks) + 0.001

    def _look_after(self, child: Child, ready: dict[int, int]) -> None:
        if child.pidfd is None or child.pidfd in ready:
            status = child.reap()
            if status is not None:
                self._bury(child, status)
                return
        if child.socket.fileno() in ready:  # only ever a hang-up: the caller wants it no more
            self.poller.unregister(child.socket.fileno())
            child.kill()
        if child.deadline is not None and time.monotonic() >= child.deadline:
            child.deadline = None
            child.kill("timeout")
        if child.memory is not None and _anonymous_bytes(child.pid) > child.memory:
            child.memory = None
            child.kill("memory")

    def _accept(self) -> bool:
        """Take one job from the control socket; False at its end."""
        try:
            message = protocol.receive(self.control)
        except OSError:
            return False
        if message is None:
            return False
        fields, (socket, arguments) = message
        self._start(Order(fields, _socket.socket(fileno=socket), arguments))
        return True

    def _start(self, order: Order) -> None:
        try:
            folder = self.prepare()
            if order.warm:
                self._improve(idle=False)
            resolve(order.function)  # here rather than in the child: imported once, forked often
            self._fork(order, folder)
        except Exception as error:
            if isinstance(error, BlockingIOError) and self.children:
                self.postponed.append(order)  # `ulimit -u`: when one ends, another may start
                return
            # What the system refused says so itself; of the rest the type is half the message.
            text = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            _tell(order.socket, (protocol.DEATH, "start", 0, text))
            order.socket.close()
        os.close(order.arguments)

    def _improve(self, *, idle: bool) -> None:
        """Do what makes later jobs faster: once when idle, before that for the jobs that ask for it."""
        if self.improve is not None:
            self.improve(idle)
        self.improved = self.improved or idle

    def _fork(self, order: Order, folder: scratch.Scratch) -> None:
        self.serial += 1
        name = str(self.serial)
        folder.make_job_folder(name)
        stderr = os.memfd_create("stderr")
        held, leash = os.pipe()
        zygote = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            os.close(stderr)
            os.close(leash)
            folder.remove_job_folder(name)
            raise
        else:
            if pid == 0:
                os.close(leash)
                self._become_child(order, stderr, folder, name, zygote, held)
        finally:
            os.close(held)
        try:
            os.setpgid(pid, pid)  # here too: whoever comes first, it is a group before any kill
        except OSError:
            pass  # It has ended already.
        child = Child(pid, order, stderr, name, leash)
        self.children[pid] = child
        self.poller.register(order.socket.fileno(), 0)
        if child.pidfd is not None:
            self.poller.register(child.pidfd, select.POLLIN)

    def _become_child(
        self,
        order: Order,
        stderr: int,
        folder: scratch.Scratch,
        name: str,
        zygote: int,
        held: int,
    ) -> None:
        """Run the job and exit. Never returns."""
        status = 1
        try:
            os.setpgid(0, 0)
            # Other jobs' sockets would look alive for as long as this child is, and so their leashes.
            for other in self.children.values():
                other.socket.close()
                os.close(other.leash)
            for later in self.postponed:
                later.socket.close()
            self.control.close()
            _die_with_zygote(zygote, held)
            _prefer_for_oom()
            os.dup2(stderr, 2)
            folder.enter_job_folder(name)
            value = resolve(order.function)(protocol.unpack(os.dup(order.arguments)))
            protocol.send(order.socket, (protocol.ANSWER,), (protocol.pack(value),))
            status = 0
        except BrokenPipeError:
            pass  # cancelled
        except BaseException as error:
            import traceback

            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            _tell(order.socket, (protocol.DEATH, "start", 0, text))
        finally:
            os._exit(status)

    def _bury(self, child: Child, status: int) -> None:
        """Clear up after a child; if it died, tell the caller, who may have had an answer."""
        del self.children[child.pid]
        try:
            self.poller.unregister(child.socket.fileno())
        except KeyError:
            pass  # The caller had hung up.
        if child.pidfd is not None:
            self.poller.unregister(child.pidfd)
            os.close(child.pidfd)
        os.close(child.leash)
        if self.scratch is not None:
            self.scratch.remove_job_folder(child.folder)
        for path in child.leftovers:
            try:
                os.unlink(path)
            except OSError:
                pass  # It left none.
        if status != 0:
            signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            message = (protocol.DEATH, child.death, signal, "")
            _tell(child.socket, message, (child.stderr,))
        child.socket.close()
        os.close(child.stderr)
        if self.postponed:
            self._start(self.postponed.pop(0))

    def end(self) -> None:
        """Kill every child and remove every trace."""
        self.postponed.clear()
        for child in list(self.children.values()):
            child.kill()
            os.waitpid(child.pid, 0)
            self._bury(child, 0)  # Whoever still waits is told by the end of file: not a crash.
        if self.scratch is not None:
            self.scratch.remove()


def _tell(
    socket: _socket.socket, message: tuple[Any, ...], descriptors: tuple[int, ...] = ()
) -> None:
    try:
        protocol.send(socket, message, descriptors)
    except OSError:
        pass  # The caller has gone.


def _open_pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable when `pid` has ended; None before Linux 5.3."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _isolate() -> None:
    """Leave what a process inherits by accident: terminal, descriptors, directory, a small stack."""
    try:
        os.setsid()  # Ctrl-C goes to every process of the terminal's foreground group.
    except PermissionError:
        pass  # It leads a session already: started anew, below.
    _keep_nice()
    import resource

    try:
        last = max(int(name) for name in os.listdir("/proc/self/fd"))
    except OSError:  # no /proc here
        last = min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], _MOST_INHERITED)
    os.closerange(CONTROL + 1, last + 1)
    os.chdir("/")
    os.umask(0o077)
    # NVRTC crashes in CuTe sources on stacks under 384 KiB, and deep templates want more.
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    unlimited = resource.RLIM_INFINITY
    wanted = _STACK_BYTES if hard == unlimited else min(hard, _STACK_BYTES)
    if soft == unlimited or soft < wanted:
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
    if soft == unlimited:
        # Linux lays memory out from the bottom then, where `heap.pin` finds no way: start anew.
        os.execv(sys.executable, sys.orig_argv)
    # Some four descriptors a job.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _DESCRIPTORS)), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _keep_nice() -> None:
    """Give way to others as our caller does: where Linux groups processes by session, ours is new."""
    nice = os.nice(0)
    if nice <= 0:
        return
    try:
        with open("/proc/self/autogroup", "w") as file:
            file.write(str(nice))
    except OSError:
        pass  # This kernel does not group them.


def _die_with_zygote(zygote: int, held: int) -> None:
    """Let the kernel kill this job's process group when its zygote ends, even all at once by -9.

    `held` is the reading end of a pipe whose other end only the zygote has, its leash. The kernel
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
    """Tell the kernel that, of all processes, it is this one that it may kill for memory."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # Not allowed here: a container's policy.


def _anonymous_bytes(pid: int) -> int:
    """Return the memory that a child and its descendants hold for themselves.

    Watched from outside rather than by RLIMIT_AS: address space counts the gigabytes that NVRTC only
    reserves, a limit would not add up over nvcc's many processes, and a failing `malloc` makes a
    compiler crash in ways that do not say why.
    """
    total = 0
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
        total += (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                total += sum(_anonymous_bytes(int(child)) for child in file.read().split())
    except (OSError, ValueError):
        pass  # It ended while we looked, or the kernel lists no children.
    return total
