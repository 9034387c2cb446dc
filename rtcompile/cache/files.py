"""Files that are whole or not there: published by rename, verified by digest when read."""

from __future__ import annotations

import itertools
import os
import struct
import time
from collections.abc import Sequence
from contextlib import suppress

from rtcompile.core.key import content_digest

__all__ = ["discard", "note_use", "publish", "read", "seal", "unseal"]

_SCHEMA = 1
_HEAD = 32 + 64  # kind and schema, then the digest of the rest

_USE_RESOLUTION = 3600.0  # seconds; last use is kept to the hour, so that a hit seldom writes

_temporary = itertools.count()


def read(path: str) -> bytes | None:
    """Return the file's bytes, None if there is none or it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        size = os.fstat(descriptor).st_size
        data = os.read(descriptor, size)
        while 0 < len(data) < size:
            more = os.read(descriptor, size - len(data))
            if not more:
                break
            data += more
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return data


def publish(path: str, data: bytes) -> None:
    """Put `data` at `path` in one step: a reader, or a crash, finds the old file or the new one.

    Raises
    ------
    OSError
        The file system is read-only, full, or otherwise unwilling; nothing is left behind.
    """
    folder, name = os.path.split(path)
    temporary = f"{folder}/.{name[:16]}-{os.getpid()}-{next(_temporary)}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(temporary, flags, 0o600)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            # Without it a power cut can leave the name without the bytes.
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except BaseException:
        discard(temporary)
        raise


def discard(path: str) -> None:
    """Remove the file if it is there and can be removed."""
    with suppress(OSError):
        os.unlink(path)


def note_use(path: str) -> None:
    """Note the use of a file in its modification time: what eviction goes by."""
    with suppress(OSError):  # read-only, or evicted a moment ago
        if time.time() - os.stat(path).st_mtime > _USE_RESOLUTION:
            os.utime(path)


def seal(kind: str, fields: Sequence[bytes]) -> bytes:
    """Return a file of length-prefixed fields that says what it is and carries its own digest."""
    lengths = struct.pack(f"<{len(fields) + 1}I", len(fields), *map(len, fields))
    payload = b"".join((lengths, *fields))
    head = f"rtcompile {kind} {_SCHEMA}\n".encode().ljust(32, b"\0")
    return head + content_digest(head + payload).encode() + payload


def unseal(kind: str, data: bytes) -> list[bytes] | None:
    """Return the fields of a sealed file; None if it is of another kind or schema, or damaged."""
    head, payload = data[:32], data[_HEAD:]
    if head != f"rtcompile {kind} {_SCHEMA}\n".encode().ljust(32, b"\0"):
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
    return fields if start == len(payload) else None
