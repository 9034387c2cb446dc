"""The zygote: loads one compiler, forks children that run the jobs, and cleans up after them.

It has one thread, so forking is safe. It compiles no user code itself, so crashes do not affect it. It ends with
its parent, or after some idle time.

Usually each job has its own child, so it cannot affect other jobs. *Reusable* jobs are the exception: NVRTC builds
without limits whose options do not affect the next compile. They reuse the compiler's memory pages, which saves 10
of 28 ms of a small kernel and a seventh of CuTe's 1.5 s. If a later job of a child crashes, or fails with an error
that may not be the source's fault, the zygote repeats it in a new child. Between two jobs the folders and stderr
are emptied; a child that finds a folder there, or has grown, ends.
"""

from __future__ import annotations

import _socket
import os
import resource
import select
import sys
import time

from rtcompile.workers import system

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

_TICK = 0.05  # seconds between two checks of a child's memory
_STACK_BYTES = 64 << 20
_DESCRIPTORS = 4096
_MOST_INHERITED = 65536


def main(parent: str, idle: str, temporary: str, name: str) -> None:
    """Serve jobs from the control socket until the parent ends or the idle time is over."""
    _isolate()
    # If somebody stopped this process, the kernel lets it continue when its caller ends, so that it ends too.
    system.signal_at_end(system.CONTROL, os.getpid(), system.SIGCONT)
    control = _socket.socket(fileno=system.CONTROL)
    zygote = Zygote(control, int(parent), float(idle), temporary, name)
    try:
        zygote.serve()
    except system.NoMessage as error:
        sys.exit(f"The worker ended: {error}")
    finally:
        zygote.end()
    # The caller waits for the exit. A normal exit of the interpreter takes several milliseconds, and there is
    # nothing to flush.
    os._exit(0)


class Zygote:
    """Supervises its children: limits, cancellation, crashes, and the removal of their files."""

    def __init__(
        self, control: _socket.socket, parent: int, idle: float, temporary: str, name: str
    ) -> None:
        self.control = control
        self.parent = parent
        self.idle = idle
        self.temporary = temporary
        self.name = name
        self.loads = ""  # as in `pool.Job`; "" once that is loaded
        self.scratch: system.Scratch | None = None
        self.children: dict[int, Child] = {}  # by pid
        self.poller = select.poll()
        self.poller.register(control.fileno(), select.POLLIN)
        # The control socket does not show that the parent ended, since its children may hold it open.
        self.parent_fd: int | None = None
        try:
            self.parent_fd = os.pidfd_open(parent)
            self.poller.register(self.parent_fd, select.POLLIN)
        except (AttributeError, OSError):
            pass  # before Linux 5.3
        self.serial = 0

    def prepare(self) -> system.Scratch:
        """Make the scratch folder and load the compiler, unless that is done, and return the folder."""
        if self.scratch is not None and not self.scratch.is_there():
            for child in self.children.values():
                if child.order is None:
                    child.kill()  # Its folder was in the removed one.
            os.close(self.scratch.descriptor)
            self.scratch = None
        if self.scratch is None:
            self.scratch = system.claim(self.temporary, self.name)
            os.fchdir(self.scratch.descriptor)  # NVRTC writes files to the working directory
            # A child's working directory is its TMPDIR too. A relative path is short: NVRTC makes no precompiled header
            # if it is longer than some 120 bytes.
            os.environ["TMPDIR"] = "."
        if self.loads:
            resolve("rtcompile.workers.libraries:load")(self.loads)
            self.loads = ""
        return self.scratch

    def serve(self) -> None:
        """Fork children, watch them and clean up; return when the parent ended or the idle time is over."""
        idle_since = time.monotonic()
        while (timeout := self._timeout(idle_since)) > 0:
            ready = dict(self.poller.poll(timeout * 1000))
            if os.getppid() != self.parent or self.parent_fd in ready:
                return
            # Do this before accepting the next job, so a child that is now free can take it.
            for child in list(self.children.values()):
                if child.order is not None:
                    idle_since = time.monotonic()
                self._look_after(child, ready)
            if self.control.fileno() in ready and not self._accept():
                return

    def _timeout(self, idle_since: float) -> float:
        """Return the seconds until the idle time is over, or until the next check of a running job."""
        now = time.monotonic()
        running = [c for c in self.children.values() if c.order is not None and not c.killed]
        if not running:
            return idle_since + self.idle - now
        looks = [1.0]
        looks += [max(0.0, child.deadline - now) for child in running if child.deadline is not None]
        looks += [_TICK for child in running if child.order and child.order.memory is not None]
        # Rounded up, since poll() counts in milliseconds, and 0 would loop without waiting.
        return min(looks) + 0.001

    def _look_after(self, child: Child, ready: dict[int, int]) -> None:
        if child.channel.fileno() in ready:
            # A message says that the child is done and waits for another job.
            try:
                is_done = system.receive(child.channel) is not None
            except (OSError, system.NoMessage):
                is_done = False
            if not is_done:
                self._reap_and_report(child, child.reap())
                return
            self._close(child.finish())
        order = child.order
        if order is None:
            return
        # Only hang-ups are registered, so the caller has cancelled.
        if order.socket.fileno() in ready:
            self.poller.unregister(order.socket.fileno())
            child.kill("cancelled")
        if child.deadline is not None and time.monotonic() >= child.deadline:
            child.kill("timeout")
        if order.memory is not None and system.anonymous_bytes(child.pid) > order.memory:
            child.kill("memory")

    def _accept(self) -> bool:
        """Receive one message from the control socket: what to load, or a job; False at its end."""
        try:
            message = system.receive(self.control)
        except OSError:
            return False
        if message is None:
            return False
        content, descriptors = message
        if descriptors:
            self._start(Order(content, _socket.socket(fileno=descriptors[0])))
            return True
        self.loads = content
        try:
            self.prepare()  # while the caller still plans its build
        except Exception:  # noqa: BLE001, S110  # each job tries again, and reports the error
            pass
        return True

    def _start(self, order: Order, *, anew: bool = False) -> None:
        """Give a job to an idle child that may run it, or to a new one."""
        try:
            folder = self.prepare()
            resolve(order.function)  # import it here once and not in each child
            fit = (c for c in self.children.values() if not anew and c.may_take(order))
            child = next(fit, None) or self._fork(folder)
        except Exception as error:  # noqa: BLE001  # the job gets whatever was raised
            # Messages of errors other than OSError need their type to be clear.
            text = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            kind = "load" if self.loads and self.scratch is not None else "start"
            report(order.socket, kind, getattr(error, "errno", 0), text)
            order.socket.close()
            return
        self.poller.register(order.socket.fileno(), 0)
        child.take(order)

    def _fork(self, folder: system.Scratch) -> Child:
        """Return a new child, which waits for a job."""
        self.serial += 1
        name = str(self.serial)
        os.mkdir(name, 0o700, dir_fd=folder.descriptor)
        opened = []
        zygote = os.getpid()
        try:
            opened.append(system.memfd())
            opened += os.pipe()
            ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
            pid = os.fork()
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            system.remove(name, folder.descriptor)
            raise
        stderr, held, lifeline = opened
        if pid == 0:
            os.close(lifeline)
            ours.close()
            self.control.close()
            become(theirs, stderr, folder, name, zygote, held, self.children.values())
        os.close(held)
        theirs.close()
        try:
            # Both processes do this, so the group exists before any kill.
            os.setpgid(pid, pid)
        except OSError:
            pass  # It has ended already.
        child = Child(pid, ours, stderr, name, lifeline)
        self.children[pid] = child
        self.poller.register(ours.fileno(), select.POLLIN)
        return child

    def _reap_and_report(self, child: Child, status: int) -> None:
        """Clean up after a child. If it crashed, repeat its job or notify the caller."""
        del self.children[child.pid]
        self.poller.unregister(child.channel.fileno())
        if self.scratch is not None:
            system.remove(child.folder, self.scratch.descriptor)
        may_retry = child.served > 0 and child.failure == "crash"
        order = child.finish()
        if order is not None and status != 0 and may_retry:
            self.poller.unregister(order.socket.fileno())
            self._start(order, anew=True)
        elif order is not None:
            if status != 0:
                signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                report(order.socket, child.failure, signal, "", system.contents(child.stderr))
            self._close(order)
        child.close()

    def _close(self, order: Order | None) -> None:
        if order is not None:
            try:
                self.poller.unregister(order.socket.fileno())
            except KeyError:
                pass  # The caller had hung up.
            order.socket.close()

    def end(self) -> None:
        """Kill every child and remove every trace."""
        children = list(self.children.values())
        for child in children:
            child.kill()  # all at once first, since each takes a moment to free its memory
        for child in children:
            child.reap()
            self._reap_and_report(child, 0)  # waiting callers see the end of file
        if self.scratch is not None:
            self.scratch.remove()


def _isolate() -> None:
    """Drop inherited state: terminal, open descriptors, directory, a small stack."""
    os.setsid()  # Ctrl-C goes to every process of the terminal's foreground group.
    if (nice := os.nice(0)) > 0:
        system.set_own(
            "autogroup", nice
        )  # Each session has its own nice value in Linux's "autogroups".
    os.closerange(system.CONTROL + 1, _MOST_INHERITED)
    os.chdir("/")
    os.umask(0o077)
    # NVRTC crashes in CuTe sources on stacks under 384 KiB, and deep templates need more.
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    unlimited = resource.RLIM_INFINITY
    wanted = _STACK_BYTES if hard == unlimited else min(hard, _STACK_BYTES)
    if soft == unlimited or soft < wanted:
        resource.setrlimit(resource.RLIMIT_STACK, (wanted, hard))
    # About four descriptors per job.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, _DESCRIPTORS)), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


# --- The child ------------------------------------------------------------------------------------

RETRY = 3  # exit status: repeat the job in a new child

_MOST_BYTES = 768 << 20
# A child that uses more memory than this waits only `_LARGE_SECONDS` for its next job.
_SMALL_BYTES = 128 << 20
_LARGE_SECONDS = 1.0
_SECONDS = 30.0  # for all other children


class Order:
    """A caller's job, and this end of its socket."""

    def __init__(self, fields: tuple[Any, ...], socket: _socket.socket) -> None:
        self.function, self.timeout, self.memory, self.reusable = fields
        self.socket = socket


class Child:
    """A child, in the zygote's process."""

    def __init__(
        self, pid: int, channel: _socket.socket, stderr: int, folder: str, lifeline: int
    ) -> None:
        self.pid = pid
        self.channel = channel
        self.lifeline = lifeline  # the zygote's end of the pipe in `die_with_zygote`
        self.stderr = stderr
        self.folder = folder
        self.order: Order | None = None
        self.served = 0
        self.killed = False  # it may not have died yet
        self.deadline: float | None = None
        self.failure = "crash"  # its kind if the child dies by itself

    def may_take(self, order: Order) -> bool:
        """Return whether it is idle and may run this job."""
        return self.order is None and not self.killed and order.reusable

    def take(self, order: Order) -> None:
        """Send the child a job."""
        self.order = order
        self.deadline = None if order.timeout is None else time.monotonic() + order.timeout
        try:
            how = order.function, order.reusable
            system.send(self.channel, how, (order.socket.fileno(),))
        except OSError:
            self.kill()  # It may have been killed while idle.

    def finish(self) -> Order | None:
        """Remove and return the child's job, which is done or failed."""
        order, self.order = self.order, None
        self.served += 1
        return order

    def kill(self, reason: str = "") -> None:
        """Kill the whole process group, since a compiler may have started programs; the first `reason` counts."""
        if reason and not self.killed:
            self.failure = reason
        self.killed = True
        try:
            os.killpg(self.pid, system.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # Only the leader is left, as a zombie.

    def reap(self) -> int:
        """Wait for a child and return its status. Kills its remaining processes."""
        self.kill()  # before reaping, while the group's number is still reserved
        return os.waitpid(self.pid, 0)[1]

    def close(self) -> None:
        """Close its descriptors, and its job's."""
        if self.order is not None:
            self.order.socket.close()
        self.channel.close()
        os.close(self.lifeline)
        os.close(self.stderr)


def become(
    channel: _socket.socket,
    stderr: int,
    folder: system.Scratch,
    name: str,
    zygote: int,
    held: int,
    others: Iterable[Child],
) -> None:
    """Run jobs as the child, and exit. Never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        # Copies of other jobs' sockets and lifelines would keep these open while this child lives.
        for other in others:
            other.close()
        system.die_with_zygote(zygote, held)
        system.set_own("oom_score_adj", 1000)  # When memory runs out, the kernel kills it first.
        os.dup2(stderr, 2)
        os.chdir(os.open(name, system.FOLDER, dir_fd=folder.descriptor))
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
            message = system.receive(channel)
        except TimeoutError:
            return RETRY  # The zygote may just have sent a job.
        if message is None:
            return 0  # The zygote ends.
        (function, reusable), [number] = message
        socket = _socket.socket(fileno=number)
        if served and not _as_new():
            return RETRY
        well = False
        try:
            arguments = system.receive(socket, _socket.MSG_PEEK)
            value = resolve(function)(arguments and arguments[0])
            well = reusable and value.pop("well")
            if served and value.pop("doubtful"):
                return RETRY
        except BaseException as error:  # noqa: BLE001  # the caller gets the traceback of whatever was raised
            if served:
                return RETRY
            import traceback

            text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
            report(socket, "start", getattr(error, "errno", 0), text)
            return 1
        size = system.private_bytes("self", _MOST_BYTES)
        stays = well and size < _MOST_BYTES
        if stays:
            # Sent before the reply, so the zygote knows that the job is done when the caller hangs up.
            system.send(channel, (system.RESULT,))
        system.send(socket, (system.RESULT, value))
        if not stays:
            return 0
        socket.close()
        served = True


def _as_new() -> bool:
    """Remove the previous job's files and stderr; False if there is anything else."""
    system.forget_stderr()
    for name in os.listdir("."):
        if not os.path.isfile(name) or os.path.islink(name):
            return False
        os.unlink(name)
    return True


def resolve(name: str) -> Any:
    """Return the function ``"module:attribute"``, which must be in this package."""
    module, _, attribute = name.partition(":")
    if not module.startswith("rtcompile."):
        raise ValueError(f"{name!r} is not in rtcompile")
    __import__(module)
    return getattr(sys.modules[module], attribute)


def report(socket: _socket.socket, kind: str, number: int, text: str, stderr: bytes = b"") -> None:
    """Send the fields of `pool.Crash` to a job's caller."""
    try:
        system.send(socket, (system.CRASH, kind, number, text, stderr))
    except OSError:
        pass  # The caller is gone.


# --- A job that runs a program --------------------------------------------------------------------

_SIGPIPE, _SIGXFSZ = 13, 25


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run one program in the job's empty folder."""
    # The job has the `command` (its first word is the program's path), `environ`, `files` to write first (name to
    # bytes) and `results`, the names of files to read afterwards. The reply's `error` is "" unless the program could
    # not be started, `status` is negative for the signal that ended it, `log` has stdout and stderr, interleaved.
    begin = time.monotonic()
    system.write(job["files"])
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
        "log": system.log_text(system.stderr_text()),
        "files": made,
        "seconds": time.monotonic() - begin,
    }
