"""Files that are whole or not there: published by rename, verified by digest when read."""

from __future__ import annotations

import itertools
import os
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

from rtcompile.storage.digest import content_digest

__all__ = ["USE_RESOLUTION", "discard", "note_use", "publish", "seal", "unseal"]

_SCHEMA = 3
USE_RESOLUTION = 3600.0  # seconds; last use is kept to the hour, so that a hit seldom writes

_HEAD = 32 + 64  # kind and schema, then the digest of the rest

_temporary = itertools.count()


def publish(path: str, data: bytes, *, dir_fd: int | None = None, durable: bool = True) -> None:
    """Put `data` at `path` in one step: a reader, or a crash, finds the old file or the new one.

    Not `durable`, a power cut can leave the name without the bytes: for what carries a digest and is
    had again at once. It spares the 3 ms that a disk takes.

    Raises
    ------
    OSError
        The file system is read-only, full, or otherwise unwilling; nothing is left behind.
    """
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name[:16]}-{os.getpid()}-{next(_temporary)}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o600, dir_fd=dir_fd)
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
            os.rmdir(path, dir_fd=dir_fd)  # one that is empty; another one is not ours to remove
            os.rename(temporary, path, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except BaseException:
        discard(temporary, dir_fd=dir_fd)
        raise


def discard(path: str, *, dir_fd: int | None = None) -> None:
    """Remove what is there if it can be removed: a file, or an empty folder in its place."""
    try:
        os.unlink(path, dir_fd=dir_fd)
    except IsADirectoryError:
        with suppress(OSError):
            os.rmdir(path, dir_fd=dir_fd)
    except OSError:
        pass


def note_use(path: str) -> None:
    """Note the use of a file in its modification time: what eviction goes by."""
    with suppress(OSError):  # read-only, or evicted a moment ago
        if abs(time.time() - os.stat(path).st_mtime) > USE_RESOLUTION:
            os.utime(path)


def seal(kind: str, key: str, fields: Sequence[bytes]) -> bytes:
    """Return a file of length-prefixed fields that says what it is, and under which key it is kept.

    It carries a digest over all of that: damage shows, and so does a file under another one's name.
    """
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


def _head(kind: str) -> bytes:
    return f"rtcompile {kind} {_SCHEMA}\n".encode().ljust(32, b"\0")
