"""Starts and ends a `zygote`, the process from which jobs are forked. Caller's side.

A build that needs a compiler calls `start` before it imports and plans anything, since starting the process takes
as long as all of that; so this module imports little.
"""

from __future__ import annotations

import _socket  # importing `socket` would take 8 ms of a process's first build
import atexit
import fcntl
import os
import sys
from contextlib import suppress

from rtcompile import forks
from rtcompile.request import units
from rtcompile.workers import system

TYPE_CHECKING = False  # as type checkers know it
if TYPE_CHECKING:
    from typing import Any, ClassVar

IDLE_SECONDS = 300.0
SIGNALS = tuple(number for number in range(1, 32) if number not in (9, 19))  # not KILL, STOP
# An empty module replaces the package, so its `__init__` and imports are not loaded.
_BARE = (
    "import sys; package = sys.modules['rtcompile'] = type(sys)('rtcompile'); "
    "package.__path__ = [sys.argv[1]]; module, _, name = sys.argv[2].partition(':'); "
    "__import__(module); getattr(sys.modules[module], name)(*sys.argv[3:])"
)


class ZygoteProcess:
    """The caller's end of one zygote: `control` takes jobs, and `last_stderr` is its last stderr."""

    alive: ClassVar[set[ZygoteProcess]] = set()
    all_ended: ClassVar[bool] = False  # whether the interpreter is exiting
    lock = forks.lock()

    def __init__(self) -> None:
        self.loads: str | None = None
        self.last_stderr = ""
        temporary = os.environ.get("TMPDIR", "")
        self._temporary = os.path.realpath(temporary) if temporary else ""
        self._scratch = system.new_name()
        words = (str(os.getpid()), str(IDLE_SECONDS), self._temporary, self._scratch)
        command = bare("rtcompile.workers.zygote:main", *words)
        self._stderr = -1
        self.control, theirs = socket_pair()
        try:
            self._stderr = system.memfd()
            descriptors = {2: self._stderr, system.CONTROL: theirs.fileno()}
            self.pid = spawn(command, units.worker_environ(os.environ), descriptors)
        except BaseException:
            self.control.close()
            if self._stderr >= 0:
                os.close(self._stderr)
            raise
        finally:
            close_theirs(theirs)
        self._identities = {d: _identity(d) for d in (self.control.fileno(), self._stderr)}
        with ZygoteProcess.lock:
            ZygoteProcess.alive.add(self)

    def _has(self, *descriptors: int) -> bool:
        """Return whether descriptors are still valid: applications may close and reuse them."""
        return all(_identity(each) == self._identities[each] for each in descriptors)

    def load(self, loads: str) -> None:
        """Tell the zygote what to load; its jobs wait until that is done."""
        self.loads = loads
        with suppress(OSError):  # it has ended; its first job will notice
            self.send(loads)

    def send(self, message: Any, *descriptors: int) -> None:
        """Send a message; raise OSError if the application closed the socket."""
        if not self._has(*self._identities):
            raise OSError("its socket was closed")
        system.send(self.control, message, descriptors)

    def close(self) -> None:
        """Let the zygote kill its children, clean up and end; wait for that."""
        if self.hang_up():
            self.reap()

    def hang_up(self) -> bool:
        """Close the control socket, which ends the zygote; False if it was closed before."""
        with ZygoteProcess.lock:
            if self not in ZygoteProcess.alive:
                return False
            ZygoteProcess.alive.discard(self)
        if self._has(self.control.fileno()):
            hang_up(self.control)
        else:
            self.control.detach()
        return True

    def kill(self) -> None:
        """Kill the zygote and its jobs, unless it has ended; `reap` removes their files."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, 9)

    def reap(self) -> None:
        """Wait until the zygote has ended, and keep its stderr."""
        status = None
        # The application's os.wait() may have reaped it, or the application ignores SIGCHLD.
        with suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not pid:
                os.kill(self.pid, 18)  # SIGCONT: a stopped zygote would never end
                _, status = os.waitpid(self.pid, 0)
        if self._has(self._stderr):
            self.last_stderr = system.drain(self._stderr).decode("utf-8", "replace").strip()
        if status is not None and os.WIFSIGNALED(status):
            ended = f"Signal {meaning_of(os.WTERMSIG(status))} ended it."
            self.last_stderr = f"{ended} {self.last_stderr}".strip()
        if status != 0:
            system.sweep(self._temporary, self._scratch)

    def abandon(self) -> None:
        """Forget a zygote that belongs to the parent of this forked process."""
        if self._has(self.control.fileno()):
            self.control.close()
        else:
            self.control.detach()
        if self._has(self._stderr):
            os.close(self._stderr)


_MEANINGS = {
    # NVRTC maps files in TMPDIR, and gets this signal if they cannot be written.
    7: "the folder for temporary files (TMPDIR) may be full, or a library may be truncated",
    9: "another program killed it, or the kernel for lack of memory",
    15: "another program ended it",
}


def meaning_of(number: int) -> str:
    """Return a signal's number, and its likely cause if the compiler did not raise it itself."""
    return f"{number} ({_MEANINGS[number]})" if number in _MEANINGS else str(number)


# --- the zygotes of a process: the first is started ahead ----------------------------------------


def start(loads: str = "") -> None:
    """Start a zygote without waiting, before this process's first job; `loads` is the NVRTC, once it is known."""
    with ZygoteProcess.lock, suppress(OSError):  # the job that needs it will report the error
        if not ZygoteProcess.alive and not ZygoteProcess.all_ended:
            ZygoteProcess()
        for zygote in ZygoteProcess.alive:
            if loads and zygote.loads is None:
                zygote.load(loads)


def zygote_for(loads: str) -> ZygoteProcess:
    """Return the zygote for such jobs, else one that was started ahead and has loaded nothing, else a new one."""
    with ZygoteProcess.lock:
        by_loads = {zygote.loads: zygote for zygote in ZygoteProcess.alive}
        zygote = by_loads.get(loads) or by_loads.get(None) or ZygoteProcess()
        if zygote.loads is None:
            zygote.load(loads)
        return zygote


# --- sockets and descriptors ---------------------------------------------------------------------

# Socket ends that are being sent to zygotes. A process forked in the meantime must close them, since otherwise the
# end of file would never arrive.
_theirs: set[_socket.socket] = set()


def occupy_standard() -> None:
    """Open /dev/null in place of each standard descriptor that is closed, as in a daemon."""
    # Otherwise a socket or lock file could get that number, and C libraries would write their messages to it.
    for number in range(3):
        if _identity(number) is None:
            opened = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            if opened != number:  # another thread opened a file meanwhile
                os.close(opened)


def socket_pair() -> tuple[_socket.socket, _socket.socket]:
    """Return the caller's and the zygote's end of a new pair of sockets."""
    occupy_standard()
    ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    _theirs.add(theirs)
    return ours, theirs


def close_theirs(socket: _socket.socket) -> None:
    """Close the caller's copy of the zygote's end."""
    socket.close()
    _theirs.discard(socket)


def hang_up(socket: _socket.socket) -> None:
    """Close this end, even if a forked process has a copy of it."""
    with suppress(OSError):
        socket.shutdown(_socket.SHUT_RDWR)
    socket.close()


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Return the device and inode of a descriptor's file; None if it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def spawn(command: list[str], environ: dict[str, str], descriptors: dict[int, int]) -> int:
    """Start a program with these descriptors, by number, and otherwise /dev/null; return its process id."""
    opened = [os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)]
    try:
        given = {**dict.fromkeys(range(3), opened[0]), **descriptors}
        for descriptor in given.values():  # so no dup2 overwrites the source of a later one
            opened.append(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, system.CONTROL + 1))
        copies = zip(opened[1:], given, strict=True)
        return os.posix_spawn(
            command[0],
            command,
            environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, copy, number) for copy, number in copies],
            setsigmask=(),
            setsigdef=SIGNALS,  # with SIGCHLD ignored no child could be waited for
        )
    finally:
        for descriptor in opened:
            os.close(descriptor)


def bare(function: str, *words: str) -> list[str]:
    """Return the command that calls a function of rtcompile without site-packages and PYTHON* variables."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if entry := getattr(sys, "rtcompile_worker", ""):  # a frozen application with rtcompile's hook
        return [sys.executable, entry, package, function, *words]
    zygote = os.path.join(package, "workers", "zygote.py")
    if not os.path.isfile(zygote) and not os.path.isfile(f"{zygote}c"):  # cx_Freeze keeps .pyc
        raise FileNotFoundError(
            f"workers run rtcompile's files with a Python, and {package} lacks them: build the application with "
            "PyInstaller, whose hook for rtcompile makes the application its own worker, or keep the files"
        )
    return [interpreter(), "-I", "-S", "-c", _BARE, package, function, *words]


def interpreter() -> str:
    """Return the Python for workers: this one, or the one in the prefix if an application embeds Python."""
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    candidates = [
        sys.executable,
        getattr(sys, "_base_executable", None),
        *(os.path.join(p, "bin", name) for p in (sys.prefix, sys.base_prefix)),
        *(os.path.join(p, name) for p in os.get_exec_path()),
    ]
    for path in candidates:
        if path and os.path.basename(path).startswith("python") and os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(f"no Python interpreter found to run compilers in; tried {candidates}")


@forks.in_child
def _forget_after_fork() -> None:
    # The zygotes belong to the parent and end with it, so the child starts its own.
    for zygote in ZygoteProcess.alive:
        zygote.abandon()
    ZygoteProcess.alive.clear()
    for socket in _theirs:
        socket.close()
    _theirs.clear()


def _end() -> None:
    """End all zygotes at once, and wait for them, since there may be no init process that does."""
    ZygoteProcess.all_ended = True
    for zygote in [zygote for zygote in list(ZygoteProcess.alive) if zygote.hang_up()]:
        zygote.reap()


atexit.register(_end)
