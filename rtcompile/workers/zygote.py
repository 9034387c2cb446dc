"""The zygote: loads one compiler, forks children that run the jobs, and cleans up after them.

It has one thread, so forking is safe. It compiles no user code itself, so crashes do not affect it. It ends with
its parent, or after some idle time.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import resource
import select
import sys
import time

from rtcompile.workers import protocol, scratch
from rtcompile.workers.child import Child, Order, anonymous_bytes, become, report, resolve

_TICK = 0.05  # seconds between two checks of a child's memory
_STACK_BYTES = 64 << 20
_DESCRIPTORS = 4096
_MOST_INHERITED = 65536
_SIGCONT = 18


def main(parent: str, idle: str, temporary: str, name: str) -> None:
    """Serve jobs from the control socket until the parent ends or the idle time is over."""
    _isolate()
    _continue_at_end()
    control = _socket.socket(fileno=protocol.CONTROL)
    zygote = Zygote(control, int(parent), float(idle), temporary, name)
    try:
        zygote.serve()
    except protocol.NoMessage as error:
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
        self.function = ""  # called with `argument` before the first fork; "" afterwards
        self.argument = ""
        self.scratch: scratch.Scratch | None = None
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

    def prepare(self) -> scratch.Scratch:
        """Make the scratch folder and load the compiler, unless that is done, and return the folder."""
        if self.scratch is not None and not self.scratch.is_there():
            for child in self.children.values():
                if child.order is None:
                    child.kill()  # Its folder was in the removed one.
            os.close(self.scratch.descriptor)
            self.scratch = None
        if self.scratch is None:
            self.scratch = scratch.claim(self.temporary, self.name)
            os.fchdir(self.scratch.descriptor)  # NVRTC writes files to the working directory
            # A child's working directory is its TMPDIR too. A relative path is short: NVRTC makes no precompiled header
            # if it is longer than some 120 bytes.
            os.environ["TMPDIR"] = "."
        if self.function:
            resolve(self.function)(self.argument)
            self.function = ""
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
        running = [child for child in self.children.values() if child.order is not None]
        if not running:
            return idle_since + self.idle - now
        looks = [1.0]
        looks += [max(0.0, child.deadline - now) for child in running if child.deadline is not None]
        looks += [_TICK for child in running if child.memory is not None]
        # Rounded up, since poll() counts in milliseconds, and 0 would loop without waiting.
        return min(looks) + 0.001

    def _look_after(self, child: Child, ready: dict[int, int]) -> None:
        if child.channel.fileno() in ready and not self._hear(child):
            self._reap_and_report(child, child.reap())
            return
        if child.order is None:
            return
        # Only hang-ups are registered, so the caller has cancelled.
        if child.order.socket.fileno() in ready:
            self.poller.unregister(child.order.socket.fileno())
            child.kill("cancelled")
        if child.deadline is not None and time.monotonic() >= child.deadline:
            child.deadline = None
            child.kill("timeout")
        if child.memory is not None and anonymous_bytes(child.pid) > child.memory:
            child.memory = None
            child.kill("memory")

    def _hear(self, child: Child) -> bool:
        """Receive the message that a child is done and waits for another job; False at its end."""
        try:
            if protocol.receive(child.channel) is None:
                return False
        except (OSError, protocol.NoMessage):
            return False
        self._close(child.finish())
        return True

    def _accept(self) -> bool:
        """Receive one message from the control socket: what to load, or a job; False at its end."""
        try:
            message = protocol.receive(self.control)
        except OSError:
            return False
        if message is None:
            return False
        fields, descriptors = message
        if descriptors:
            socket, arguments = descriptors
            self._start(Order(fields, _socket.socket(fileno=socket), arguments))
            return True
        self.function, self.argument = fields
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
            # Once the compiler is loaded, `function` is "".
            kind = "load" if self.function and self.scratch is not None else "start"
            report(order.socket, (protocol.CRASH, kind, getattr(error, "errno", 0), text))
            order.close()
            return
        self.poller.register(order.socket.fileno(), 0)
        child.take(order)

    def _fork(self, folder: scratch.Scratch) -> Child:
        """Return a new child, which waits for a job."""
        self.serial += 1
        name = str(self.serial)
        os.mkdir(name, 0o700, dir_fd=folder.descriptor)
        opened = []
        zygote = os.getpid()
        try:
            opened.append(scratch.memfd())
            opened += os.pipe()
            ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
            pid = os.fork()
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            scratch.remove(name, folder.descriptor)
            raise
        stderr, held, lifeline = opened
        if pid == 0:
            os.close(lifeline)
            ours.close()
            self.control.close()
            others = self.children.values()
            orders = [each.order for each in others if each.order]
            become(theirs, stderr, folder, name, zygote, held, (*others, *orders))
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
            scratch.remove(child.folder, self.scratch.descriptor)
        may_retry = child.served > 0 and child.failure == "crash"
        order = child.finish()
        if order is not None and status != 0 and may_retry:
            self.poller.unregister(order.socket.fileno())
            self._start(order, anew=True)
        elif order is not None:
            if status != 0:
                signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
                report(order.socket, (protocol.CRASH, child.failure, signal, ""), (child.stderr,))
            self._close(order)
        child.close()

    def _close(self, order: Order | None) -> None:
        if order is not None:
            try:
                self.poller.unregister(order.socket.fileno())
            except KeyError:
                pass  # The caller had hung up.
            order.close()

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


def _continue_at_end() -> None:
    """Let the kernel continue a zygote that somebody stopped when its caller ends, so that it ends too."""
    # The signal also comes with each message, and does nothing to a process that is not stopped.
    try:
        fcntl.fcntl(protocol.CONTROL, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(protocol.CONTROL, fcntl.F_SETSIG, _SIGCONT)
        fcntl.fcntl(protocol.CONTROL, fcntl.F_SETFL, os.O_RDWR | os.O_ASYNC)
    except OSError:
        pass  # an emulated Linux kernel


def keep_priority() -> None:
    """Give this process's new session its nice value, since Linux's "autogroups" have their own."""
    nice = os.nice(0)
    if nice > 0:
        try:
            with open("/proc/self/autogroup", "w") as file:
                file.write(str(nice))
        except OSError:
            pass  # This kernel has no autogroups.


def _isolate() -> None:
    """Drop inherited state: terminal, open descriptors, directory, a small stack."""
    os.setsid()  # Ctrl-C goes to every process of the terminal's foreground group.
    keep_priority()
    os.closerange(protocol.CONTROL + 1, _MOST_INHERITED)
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
