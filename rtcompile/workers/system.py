"""What the caller, the zygote and its children share: messages, temporary files, and what they ask of Linux.

A *job* is a function of this package, named ``"module:function"``, and a dict of plain values
(None, bool, int, float, str, bytes, list, tuple, dict). It runs in a separate process::

    caller ──spawns, once──▶ zygote (one compiler loaded, single-threaded)
       │                        │ forks, per job
       └──── job socket ──── child: function(arguments) -> plain value

On the zygote's control socket the caller sends what to load, and for each job the function's name, the limits and one
end of a new *job socket*. The other end has sent the arguments, which a child reads and leaves there for another child
that repeats the job. The job socket returns ``RESULT`` and the value, or ``CRASH`` with the fields of `pool.Crash`; if
it closes without a message, the zygote is gone. The caller cancels by closing its end. Messages are plain values
and not pickles.

The function runs in an empty working directory, which is its TMPDIR too, with stdout on ``/dev/null`` and stderr in a
memfd. Its process is the leader of a process group, which is killed when the job ends.

Worker-side modules are imported by a bare ``python -I -S`` that starts in 10 ms: they must not import
``dataclasses``, ``typing``, ``subprocess`` (unless they need it) or anything that does.

There is one scratch directory per zygote (mode 0700), in TMPDIR or the first of `PARENTS` that can be used. A zygote
locks its folder as long as it or a child lives. A later process of the same user removes unlocked folders;
without locks, or if another machine made the folder, it removes folders that are a day old.
"""

from __future__ import annotations

import _socket  # `socket` costs 8 ms (selectors, enum) of a worker's 20 ms start.
import errno
import fcntl
import marshal
import os
import stat
import time

TYPE_CHECKING = False  # as type checkers know it; `typing` costs 5 ms
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# --- Messages ----------------------------------------------------------------------------------------

CONTROL = 3  # the zygote's descriptor of the control socket
RESULT = "result"
CRASH = "death"

# Limits of the messages: names, numbers, short values and a few descriptors.
_MESSAGE_BYTES = 1 << 14
_MAX_DESCRIPTORS = 4
_LOG_BYTES_AT_EACH_END = 1 << 20
_INT_BYTES = 4
# A message is `_IN_MEMFD`, whose value is in a memfd, or `_MAGIC` followed by the value.
_IN_MEMFD, _MAGIC = b"rtcompile in memfd\n", b"rtcompile\n"

# Every Python since 3.4 reads version 4; caller and worker may run different versions.
_MARSHAL_VERSION = 4


def in_memfd(data: bytes) -> int:
    """Return the descriptor of a new memfd, at its beginning."""
    descriptor = memfd()
    try:
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], written)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def contents(descriptor: int) -> bytes:
    """Return the contents of a memfd so far."""
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def drain(descriptor: int) -> bytes:
    """Return the contents of a memfd and close it."""
    try:
        return contents(descriptor)
    finally:
        os.close(descriptor)


def log_text(log: bytes) -> str:
    """Return a compiler's log, without its middle if it is too long to read."""
    left_out = len(log) - 2 * _LOG_BYTES_AT_EACH_END
    if left_out > 0:
        cut = b"\n... %d bytes are left out here ...\n" % left_out
        log = log[:_LOG_BYTES_AT_EACH_END] + cut + log[-_LOG_BYTES_AT_EACH_END:]
    return log.decode("utf-8", "replace")


def stderr_text() -> bytes:
    """Return the standard error of this job and its programs so far."""
    return contents(2)


def forget_stderr() -> None:
    """Clear the text that `stderr_text` returns."""
    os.ftruncate(2, 0)
    os.lseek(2, 0, os.SEEK_SET)


class NoMessage(Exception):
    """What was received is not a message of rtcompile, so it is not decoded."""


def send(socket: _socket.socket, value: Any, descriptors: tuple[int, ...] = ()) -> None:
    """Send one message with duplicates of the descriptors; a long value is sent in a memfd."""
    data = marshal.dumps(value, _MARSHAL_VERSION)
    is_long = len(data) > _MESSAGE_BYTES
    if is_long:
        descriptors = (*descriptors, in_memfd(data))
    try:
        packed = b"".join(d.to_bytes(_INT_BYTES, "little") for d in descriptors)
        ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)] if packed else []
        socket.sendmsg([_IN_MEMFD if is_long else _MAGIC, b"" if is_long else data], ancillary)
    finally:
        if is_long:
            os.close(descriptors[-1])


def receive(socket: _socket.socket, flags: int = 0) -> tuple[Any, list[int]] | None:
    """Receive one message and its descriptors; None at the end of file. Raise `NoMessage` for anything else."""
    space = _socket.CMSG_SPACE(_MAX_DESCRIPTORS * _INT_BYTES)
    most = _MESSAGE_BYTES + len(_MAGIC)
    flags |= _socket.MSG_CMSG_CLOEXEC
    try:
        frame, ancillary, _, _ = socket.recvmsg(most, space, flags)
    except ConnectionResetError:  # The other end was closed before it had read everything.
        frame, ancillary, _, _ = socket.recvmsg(most, space, flags)
    descriptors = [
        int.from_bytes(data[i : i + _INT_BYTES], "little")
        for level, kind, data in ancillary
        if (level, kind) == (_socket.SOL_SOCKET, _socket.SCM_RIGHTS)
        for i in range(0, len(data) - _INT_BYTES + 1, _INT_BYTES)
    ]
    if not frame:
        return None
    if not frame.startswith((_MAGIC, _IN_MEMFD)):
        raise NoMessage(f"something other than a message of rtcompile arrived: {frame[:80]!r}")
    data = frame[len(_MAGIC) :] if frame != _IN_MEMFD else drain(descriptors.pop())
    return marshal.loads(data), descriptors  # noqa: S302  # both ends are one user's processes


# --- Temporary files ---------------------------------------------------------------------------------

# Parents for the folders, tried in this order if TMPDIR is not set or unusable.
PARENTS = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  # a folder in it is of mode 0700, and its name cannot be guessed

_NAME = "rtcompile-workers-"
# Without locks, a folder counts as abandoned after this time without a write.
_UNUSED_SECONDS = 86400.0
# Errors of `memfd_create` in a sandbox that forbids it (gVisor, seccomp).
_REFUSED = (errno.ENOSYS, errno.EPERM, errno.EACCES, errno.EINVAL)
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Scratch:
    """A zygote's folder: its path, and its descriptor, which holds the lock."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    def is_there(self) -> bool:
        """Return whether it still exists, since users and programs clean up TMPDIR."""
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(os.fstat(self.descriptor), found)

    def remove(self) -> None:
        """Remove this folder, and the leftover folders of killed zygotes."""
        remove(self.path)
        os.close(self.descriptor)
        _sweep(os.path.dirname(self.path), "")


def new_name() -> str:
    """Return a unique name for a zygote's folder."""
    return f"{_prefix()}{_machine()}-{os.urandom(12).hex()}"


def _prefix() -> str:
    """Return the beginning of the names of this user's folders."""
    return f"{_NAME}{os.geteuid()}-"


def _machine() -> str:
    """Return an identifier of this machine, since several may mount the same folder."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read(8)
    except OSError:
        return os.uname().nodename.encode().hex()[:16]


def claim(temporary: str, name: str) -> Scratch:
    """Make a zygote's folder in TMPDIR, locked as long as this process or a child lives."""
    problems = []
    for parent in _parents(temporary):
        try:
            _check_parent(parent)
            return _claimed(os.path.join(parent, name))
        except OSError as error:
            problems.append(f"{parent}: {error.strerror or error}")
    raise OSError(
        f"no folder for temporary files can be used ({'; '.join(problems)}). "
        "Set TMPDIR to a folder of your own with free space."
    )


def memfd() -> int:
    """Return the descriptor of a new memfd, or of an unlinked file on disk where the system refuses one."""
    try:
        return os.memfd_create("rtcompile")
    except (AttributeError, OSError) as error:  # some builds of Python lack the function
        if isinstance(error, OSError) and error.errno not in _REFUSED:
            raise
        refused = error
    for parent in _parents(os.environ.get("TMPDIR", "")):
        path = os.path.join(parent, f"{_NAME}{os.urandom(12).hex()}")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            continue
        os.unlink(path)
        return descriptor
    raise OSError(f"neither memfd_create ({refused}) nor a temporary file is possible; set TMPDIR")


def sweep(temporary: str, own: str) -> None:
    """Remove the folders of killed zygotes; `own` belongs to a zygote that is known to have ended."""
    for parent in _parents(temporary):
        try:
            _check_parent(parent)
            _sweep(parent, own)
        except OSError:
            pass  # nothing of this user is in it


def _parents(temporary: str) -> Iterable[str]:
    return dict.fromkeys(parent for parent in (temporary, *PARENTS) if parent)


def _check_parent(parent: str) -> None:
    """Raise OSError if another user could replace this user's folders, or a shell would run its name."""
    if any(character in parent for character in '"$`'):
        raise OSError("nvcc passes its name to a shell, which would expand it")
    status = os.stat(parent)
    if status.st_uid not in (0, os.geteuid()):
        raise OSError(f"belongs to user {status.st_uid}, who could replace its contents")
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise OSError("others could replace its contents (no sticky bit)")


def _claimed(path: str) -> Scratch:
    # Until it is locked, it has a name that sweeping processes leave alone for a day.
    new = os.path.join(os.path.dirname(path), f"{_prefix()}{os.urandom(12).hex()}")
    os.mkdir(new, 0o700)
    folder = os.open(new, FOLDER)
    _lock(folder)
    os.rename(new, path)
    return Scratch(path, folder)


def _lock(descriptor: int) -> bool | None:
    """Lock a folder; False if another process has locked it, None if there are no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None  # some network file systems
    return True


def _sweep(parent: str, own: str) -> None:
    """Remove this user's folders that no process locks."""
    prefix = _prefix()
    here = f"{prefix}{_machine()}-"
    for name in os.listdir(parent):
        if not name.startswith(prefix):
            continue
        path = os.path.join(parent, name)
        try:
            descriptor = os.open(path, FOLDER)
        except OSError:
            continue  # removed just now, not a folder, or another user's
        try:
            status, locked = os.fstat(descriptor), _lock(descriptor)
            known = name == own or (locked and name.startswith(here))
            is_unused = known or time.time() - status.st_mtime > _UNUSED_SECONDS
            if status.st_uid == os.geteuid() and locked is not False and is_unused:
                remove(path)
        finally:
            os.close(descriptor)


def write(files: dict[Any, bytes]) -> None:
    """Write these files, by path, to the job's folder."""
    for path, data in files.items():
        if folder := os.path.dirname(path):
            os.makedirs(folder, exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)


def remove(name: str, folder: int | None = None) -> None:
    """Remove the file or folder of this name, in an open folder if it is relative, as far as possible."""
    try:
        try:
            os.unlink(name, dir_fd=folder)
            return
        except IsADirectoryError:
            descriptor = os.open(name, FOLDER, dir_fd=folder)
        try:
            for inner in os.listdir(descriptor):
                remove(inner, descriptor)
        finally:
            os.close(descriptor)
        os.rmdir(name, dir_fd=folder)
    except OSError:
        pass


# --- The process -------------------------------------------------------------------------------------


SIGKILL, SIGCONT = 9, 18


def die_with_zygote(zygote: int, held: int) -> None:
    """Let the kernel kill this job's process group when its zygote ends, even by ``kill -9``."""
    # `held` is the reading end of a pipe whose other end only the zygote has. When that closes, the kernel sends
    # SIGKILL to the group, as long as one of its processes has the reading end open.
    signal_at_end(held, -os.getpid(), SIGKILL)
    os.set_inheritable(held, True)
    if os.getppid() != zygote:
        os._exit(1)  # The zygote ended before this took effect.


def signal_at_end(descriptor: int, receiver: int, signal: int) -> None:
    """Let the kernel send a signal to a process, or to a group (negative), when the other end writes or closes."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, receiver)
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_ASYNC)
    except OSError:
        pass  # an emulated Linux kernel


def set_own(name: str, value: int) -> None:
    """Write a number to one of this process's files in /proc, if this kernel or container allows it."""
    try:
        with open(f"/proc/self/{name}", "w") as file:
            file.write(str(value))
    except OSError:
        pass


def private_bytes(pid: int | str, unknown: int) -> int:
    """Return the bytes of a process's private memory; `unknown` if they cannot be read."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
    except (OSError, ValueError):
        return unknown
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def anonymous_bytes(pid: int) -> int:
    """Return the bytes of private memory of a child and its descendants."""
    # RLIMIT_AS would count NVRTC's reserved memory, not the sum over nvcc's processes, and crash compilers.
    total = private_bytes(pid, 0)
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                total += sum(anonymous_bytes(int(child)) for child in file.read().split())
    except (OSError, ValueError):
        pass  # It ended, or the kernel lists no children.
    return total
