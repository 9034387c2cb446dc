"""The messages between the caller, the zygote and the forked child: plain values, no pickle.

A *job* is a function of this package, named ``"module:function"``, and a dict of plain values
(None, bool, int, float, str, bytes, list, tuple, dict). It runs in a separate process::

    caller ──spawns, once──▶ zygote (one compiler loaded, single-threaded)
       │                        │ forks, per job
       └──── job socket ──── child: function(arguments) -> plain value

On the zygote's control socket the caller sends what to load, and for each job the function's name, its arguments,
the limits, and one end of a new *job socket*. The job socket returns ``RESULT`` and the value, or
``CRASH`` with the fields of `pool.Crash`; if it closes without a message,
the zygote is gone. The caller cancels by closing its end.

The function runs in an empty working directory, which is its TMPDIR too, stdout on ``/dev/null`` and stderr in a memfd,
as the leader of a process group, which is killed when the job ends.

Worker-side modules are imported by a bare ``python -I -S`` that starts in 10 ms: they must not import
``dataclasses``, ``typing``, ``subprocess`` (unless they need it) or anything that does.
"""

from __future__ import annotations

import _socket  # `socket` costs 8 ms (selectors, enum) of a worker's 20 ms start.
import marshal
import os

from rtcompile.workers import system

TYPE_CHECKING = False  # as type checkers know it; `typing` costs 5 ms
if TYPE_CHECKING:
    from typing import Any

CONTROL = 3  # the zygote's descriptor of the control socket
RESULT = "result"
CRASH = "death"

# Limits of the messages: names, numbers, short values and a few descriptors.
_MESSAGE_BYTES = 1 << 14
_MAX_DESCRIPTORS = 4
_LOG_BYTES_AT_EACH_END = 1 << 20
_INT_BYTES = 4
# A message is one of these, the second before the value itself.
_IN_MEMFD, _MAGIC = b"rtcompile in memfd\n", b"rtcompile\n"

# Every Python since 3.4 reads version 4; caller and worker may run different versions.
_MARSHAL_VERSION = 4


def in_memfd(data: bytes) -> int:
    """Return the descriptor of a new memfd, at its beginning."""
    descriptor = system.memfd()
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
    """What was received is none of these messages, so it is not decoded."""


def send(
    socket: _socket.socket,
    value: Any,
    descriptors: tuple[int, ...] = (),
    most: int = _MESSAGE_BYTES,
) -> None:
    """Send one message with duplicates of the descriptors; a value of more bytes than `most` is sent in a memfd."""
    data = marshal.dumps(value, _MARSHAL_VERSION)
    is_long = len(data) > most
    if is_long:
        descriptors = (*descriptors, in_memfd(data))
    try:
        packed = b"".join(d.to_bytes(_INT_BYTES, "little") for d in descriptors)
        ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)] if packed else []
        socket.sendmsg([_IN_MEMFD if is_long else _MAGIC, b"" if is_long else data], ancillary)
    finally:
        if is_long:
            os.close(descriptors[-1])


def receive(socket: _socket.socket) -> tuple[Any, list[int]] | None:
    """Receive one message and its descriptors; None at the end of file. Raise `NoMessage` for anything else."""
    space = _socket.CMSG_SPACE(_MAX_DESCRIPTORS * _INT_BYTES)
    most = _MESSAGE_BYTES + len(_MAGIC)
    frame, ancillary, _, _ = socket.recvmsg(most, space, _socket.MSG_CMSG_CLOEXEC)
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
