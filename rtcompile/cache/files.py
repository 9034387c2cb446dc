"""Writes files by rename, so no reader sees half a file, and verifies a digest on reading."""

from __future__ import annotations

import itertools
import os
import struct
import time

from rtcompile.storage.digest import content_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_SCHEMA = 5
USE_RESOLUTION = 3600.0  # seconds; the last use is noted once an hour, so few hits write

_HEAD = 32 + 64  # kind and schema, then the digest of the rest

_temporary = itertools.count()


def publish(
    path: str,
    data: bytes,
    *,
    dir_fd: int | None = None,
    durable: bool = True,
    mode: int = 0o600,
) -> None:
    """Put `data` at `path` in one step: a reader, or a crash, finds the old file or the new one.

    With `durable` False a power cut can leave an empty or partial file, but the 3 ms of a disk's
    sync are saved. That is right for files with a digest that are easily made again. `mode` is what
    the umask is taken from, 0o666 for the user's own files. An error leaves nothing behind.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name[:16]}-{os.getpid()}-{next(_temporary)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, mode, dir_fd=dir_fd)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.rename(temporary, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        except IsADirectoryError:
            os.rmdir(path, dir_fd=dir_fd)  # removes only an empty folder
            os.rename(temporary, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        discard(temporary, dir_fd=dir_fd)
        raise


def discard(path: str, *, dir_fd: int | None = None) -> None:
    """Remove what is there if it can be removed: a file, or an empty folder in its place."""
    try:
        os.unlink(path, dir_fd=dir_fd)
    except IsADirectoryError:
        try:
            os.rmdir(path, dir_fd=dir_fd)
        except OSError:
            pass
    except OSError:
        pass


def note_use(path: str) -> None:
    """Set a file's modification time, by which eviction finds the files that are not used."""
    try:
        if abs(time.time() - os.stat(path).st_mtime) > USE_RESOLUTION:
            os.utime(path)
    except OSError:  # the cache is read-only, or the file was evicted just now
        pass


def seal(kind: str, key: str, fields: Sequence[bytes]) -> bytes:
    """Return a file's content: kind, key, length-prefixed fields, and a digest of all of it."""
    parts = (key.encode("utf-8", "surrogateescape"), *fields)
    lengths = struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts))
    payload = b"".join((lengths, *parts))
    head = _head(kind)
    return head + content_digest(head + payload).encode() + payload


def unseal(kind: str, key: str, data: bytes) -> list[bytes] | None:
    """Return the fields; None if `data` is damaged, or is of another kind, schema or key."""
    head, payload = data[:32], data[_HEAD:]
    if head != _head(kind):
        return None
    if data[32:_HEAD] != content_digest(head + payload).encode():
        return None
    try:
        (count,) = struct.unpack_from("<I", payload)
        lengths = struct.unpack_from(f"<{count}I", payload, 4)
    except struct.error:
        return None
    fields = []
    start = 4 + 4 * count
    for length in lengths:
        fields.append(payload[start : start + length])
        start += length
    if start != len(payload) or not fields:
        return None
    return fields[1:] if fields[0] == key.encode("utf-8", "surrogateescape") else None


def is_of_another_version(kind: str, data: bytes) -> bool:
    """Say whether a version of rtcompile with another schema wrote a file of this kind."""
    start = f"rtcompile {kind} ".encode()
    schema = data[len(start) : 32].rstrip(b"\0")
    return (
        data.startswith(start)
        and schema[:-1].isdigit()
        and schema[-1:] == b"\n"
        and schema[:-1] != b"%d" % _SCHEMA
    )


def _head(kind: str) -> bytes:
    return f"rtcompile {kind} {_SCHEMA}\n".encode().ljust(32, b"\0")
