"""Files that only this user or root could have written: replaced by rename, verified by digest.

The contents of a cache are run: as code on the device, or as libraries in this process. The rule:

- A folder is used if it belongs to this user or root and no other user may write to it. It is
  opened without following a link, and checked by the descriptor through which its files are opened.
  A folder that no other user can replace is checked once per process (`store.folder`).
- A file is used if it is a regular file in such a folder, belongs to this user or root, may be
  written by no other user, and has no second hard link. The last two matter where the folder was
  writable by others before: files that they made still belong to them, and a file of this user that
  they linked into it has two links. Hard links are allowed where folder and file are root's and
  this user is not root, since container images share files in that way.
- A named pipe or a device instead of a file is rejected and not read, since that may never end.

One case is not noticed: a file of this user that others could write to, and changed, before its
mode was corrected.

`open_folder` with ``private=False`` is for the folder that contains such folders. It must belong to
this user or root, but may have any mode. Users who can write to it can remove the folders in it;
folders that they make instead belong to them, and are rejected.
"""

from __future__ import annotations

import itertools
import os
import stat
import struct
import time

from rtcompile.errors import InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


# --- Digest and stat signature of a file ------------------------------------------------------------

try:  # hashlib loads OpenSSL, which takes 2.5 ms; a whole cache hit takes less than one
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b


def content_digest(data: bytes | memoryview) -> str:
    """Return the digest of a file's bytes, in hexadecimal."""
    return blake2b(data, digest_size=32).hexdigest()


def stat_of(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return the size, mtime, ctime (ns) and inode: one of them differs once a file was changed."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


# --- Opens files only if no other user could have written them ------------------------------------

MOST_BYTES = 1 << 30  # rtcompile writes no larger file

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedError(OSError):
    """A folder or file that another user could have written, or that is of the wrong type."""


def open_folder(path: str, *, dir_fd: int | None = None, private: bool = True) -> int:
    """Return a descriptor of a folder whose files (if not `private`, only its folders) may be used."""
    try:
        descriptor = os.open(path, _FOLDER | os.O_NOFOLLOW if private else _FOLDER, dir_fd=dir_fd)
    except NotADirectoryError:
        # This raises if a parent is not a folder.
        os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
        raise UntrustedError(f"{path} is not a directory") from None
    try:
        judge_folder(path, os.fstat(descriptor), private=private)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def judge_folder(path: str, status: os.stat_result, *, private: bool = True) -> None:
    """Raise `UntrustedError` if a folder with this status must not be used, as `open_folder` does."""
    if not stat.S_ISDIR(status.st_mode):
        raise UntrustedError(f"{path} is not a directory")
    if status.st_uid and status.st_uid != os.geteuid():
        raise UntrustedError(
            f"{path} belongs to user {status.st_uid}, not to {os.geteuid()}: its contents would "
            "be run as your own"
        )
    if private and status.st_mode & _OTHERS_MAY_WRITE:
        raise UntrustedError(
            f"{path} can be written by others (mode {stat.S_IMODE(status.st_mode):04o}): files "
            "that they put there would be run as your own"
        )


def can_be_swapped(path: str) -> bool:
    """Return whether other users could replace a folder on a path, so that only descriptors are safe."""
    trusted = {0, os.geteuid()}
    try:
        with open("/proc/self/uid_map", "rb") as file:
            if b"4294967295" not in file.read():
                trusted.add(_UNMAPPED)
        for top in {os.path.join(os.getcwd(), path), os.path.realpath(path)}:
            parts = top.split("/")
            for count in range(len(parts), 0, -1):
                try:
                    status = os.lstat("/".join(parts[:count]) or "/")
                except FileNotFoundError:  # it will be made by this user
                    continue
                is_above = count < len(parts)
                if status.st_uid not in trusted or _is_open_to_others(status, above=is_above):
                    return True
    except OSError:
        return True
    return False


# In a user namespace, files of an owner outside it, such as the host's root, appear with this owner.
_UNMAPPED = 65534


def _is_open_to_others(status: os.stat_result, *, above: bool) -> bool:
    """Return whether others may rename a folder's entries; `above` accepts write access of the user's own group."""
    mode = status.st_mode
    if stat.S_ISLNK(mode) or mode & stat.S_ISVTX or not mode & _OTHERS_MAY_WRITE:
        return False
    if mode & stat.S_IWOTH or not above:
        return True
    try:
        import grp
        import pwd

        name, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(status.st_gid)
    except (ImportError, KeyError):
        return True
    return group.gr_name != name or bool({*group.gr_mem} - {name})


def open_regular(
    path: str, *, dir_fd: int | None = None, follow: bool = True
) -> tuple[int, os.stat_result]:
    """Return a regular file's descriptor and status; a pipe is an error, since reading it may block forever."""
    flags = _FILE if follow else _FILE | os.O_NOFOLLOW
    descriptor = os.open(path, flags, dir_fd=dir_fd)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedError(f"{path} is not a regular file")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def read_given(path: str) -> bytes:
    """Return the bytes of a regular file of any owner."""
    try:
        descriptor, _ = open_regular(path)
    except ValueError as error:  # the path has a NUL
        raise OSError(str(error)) from None
    with open(descriptor, "rb") as file:
        return file.read()


def read_argument(file: str, which: str) -> bytes:
    """Return the bytes of a regular file that an argument names; the error begins with `which` file it is."""
    try:
        return read_given(file)
    except OSError as error:
        why = error.strerror or str(error).removeprefix(f"{file} is ")
        raise InvalidRequest(f"{which}: {why}") from None


def read_text(file: str) -> str:
    """Return the text of a source, a regular file of UTF-8; errors begin with its path."""
    return decoded(read_argument(file, file), file)


def decoded(data: bytes, file: str) -> str:
    """Return a source's text; an error names the line that is not UTF-8."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidRequest(f"{file}:{line}: error: not UTF-8 ({error.reason})") from None


def open_file(name: str, dir_fd: int | None) -> tuple[int, os.stat_result]:
    """Return descriptor and status of a file of at most `MOST_BYTES`, checked by the rule in this module's docstring."""
    try:
        descriptor, status = open_regular(name, dir_fd=dir_fd, follow=False)
    except OSError as error:
        import errno

        # These errors mean a link, or a socket or a device without a driver.
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):
            raise UntrustedError(f"{name} is not a regular file") from None
        raise
    why = ""
    us = os.geteuid()
    if status.st_uid and status.st_uid != us:
        why = f"belongs to user {status.st_uid}, not to {us}"
    elif status.st_mode & _OTHERS_MAY_WRITE:
        why = "can be written by others"
    elif status.st_nlink > 1 and not (
        # root's file in root's folder
        us
        and not status.st_uid
        and not os.stat(os.path.dirname(name) if dir_fd is None else dir_fd).st_uid
    ):
        why = "has a second hard link"
    elif status.st_size > MOST_BYTES:
        why = f"has {status.st_size} bytes, more than {MOST_BYTES}"
    if why:
        os.close(descriptor)
        raise UntrustedError(f"{name} {why}")
    return descriptor, status


def contents(descriptor: int, size: int) -> bytes:
    """Return the first `size` bytes of a file, or fewer if it is shorter."""
    data = os.read(descriptor, size)
    while 0 < len(data) < size and (more := os.read(descriptor, size - len(data))):
        data += more
    return data


# --- Writes files by rename -----------------------------------------------------------------------

_SCHEMA = 9
USE_RESOLUTION = 3600.0  # seconds; the last use is recorded once an hour, so few hits write

_HEAD = 32 + 64  # kind and schema, then the digest of the rest

_temporary = itertools.count()


def publish(
    path: str, data: bytes, *, dir_fd: int | None = None, durable: bool = True, mode: int = 0o600
) -> None:
    """Put `data` at `path` in one step: a reader, or a crash, finds the old file or the new one."""
    # Without `durable`, a power cut may damage the file, but the 3 ms of a sync are saved.
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
    """Remove a file, or an empty folder in its place, if possible."""
    try:
        os.unlink(path, dir_fd=dir_fd)
    except IsADirectoryError:
        try:
            os.rmdir(path, dir_fd=dir_fd)
        except OSError:
            pass
    except OSError:
        pass


def note_use(file: str | int, used: float | None = None) -> None:
    """Record a use in the modification time, which eviction reads; `used` is the recorded time, if known."""
    try:
        if abs(time.time() - (os.stat(file).st_mtime if used is None else used)) > USE_RESOLUTION:
            os.utime(file)
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


def _head(kind: str) -> bytes:
    return f"rtcompile {kind} {_SCHEMA}\n".encode().ljust(32, b"\0")
