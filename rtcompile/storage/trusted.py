"""Opens files only if no other user could have written them, which is checked by descriptor.

The contents of a cache are run: as code on the device, or as libraries in this process. The rule:

- A folder is used if it belongs to this user or root and no other user may write to it. It is
  opened without following a link, and checked by the descriptor through which its files are opened.
- A file is used if it is a regular file in such a folder, belongs to this user or root, may be
  written by no other user, and has no second hard link. The last two matter where the folder was
  writable by others before: files that they made still belong to them, and a file of this user that
  they linked into it has two links. Hard links are allowed where folder and file are root's and
  this user is not root, since container images share files in that way.
- A named pipe or a device in place of a file is refused and not read, since that may never end.

One case is not noticed: a file of this user that others could write to, and changed, before its
mode was corrected.

`open_folder` with ``private=False`` is for the folder that holds such folders. It must belong to
this user or root, but may have any mode. Users who can write to it can remove the folders in it;
folders that they make instead belong to them, and are refused.
"""

from __future__ import annotations

import os
import stat

MOST_BYTES = 1 << 30  # rtcompile writes no larger file

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedError(OSError):
    """A folder or file that another user could have written, or that is of the wrong type."""


def open_folder(path: str, *, dir_fd: int | None = None, private: bool = True) -> int:
    """Return a descriptor of a folder whose files may be used, else raise UntrustedError.

    One that is not `private`, since none of its files will be opened, may be a link to another
    disk, and others may write to it.
    """
    try:
        descriptor = os.open(path, _FOLDER | os.O_NOFOLLOW if private else _FOLDER, dir_fd=dir_fd)
    except NotADirectoryError:
        os.stat(
            path, dir_fd=dir_fd, follow_symlinks=False
        )  # or a part of the path above it is no folder
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
            f"{path} belongs to user {status.st_uid}, not to {os.geteuid()}: what is in it would be "
            "run as if it were your own"
        )
    if private and status.st_mode & _OTHERS_MAY_WRITE:
        raise UntrustedError(
            f"{path} can be written by others (mode {stat.S_IMODE(status.st_mode):04o}): what they "
            "put there would be run as if it were your own"
        )


def can_be_swapped(path: str) -> bool:
    """Say whether other users could replace a folder in `path`: then only its descriptor is safe."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return True
    return bool(mode & _OTHERS_MAY_WRITE) and not mode & stat.S_ISVTX


def open_regular(
    path: str, *, dir_fd: int | None = None, follow: bool = True
) -> tuple[int, os.stat_result]:
    """Return a regular file's descriptor and status; a pipe, whose reading may never end, is refused."""
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
    """Return the bytes of a regular file that the caller names, of any owner."""
    try:
        descriptor, _ = open_regular(path)
    except ValueError as error:  # the path has a NUL
        raise OSError(str(error)) from None
    with open(descriptor, "rb") as file:
        return file.read()


def open_file(name: str, *, dir_fd: int, most: int = MOST_BYTES) -> tuple[int, os.stat_result]:
    """Return descriptor and status of a file of at most `most` bytes, checked by the rule above."""
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
        us
        and not status.st_uid
        and not os.fstat(dir_fd).st_uid  # root's file in a folder of root's
    ):
        why = "has a second name"
    elif status.st_size > most:
        why = f"has {status.st_size} bytes, more than {most}"
    if why:
        os.close(descriptor)
        raise UntrustedError(f"{name} {why}")
    return descriptor, status


def contents(descriptor: int, size: int) -> bytes:
    """Return the first `size` bytes of a file, or fewer if it is shorter."""
    data = os.read(descriptor, size)
    while 0 < len(data) < size:
        more = os.read(descriptor, size - len(data))
        if not more:
            break
        data += more
    return data


def read(name: str, *, dir_fd: int, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file; raises as `open_file`."""
    descriptor, status = open_file(name, dir_fd=dir_fd, most=most)
    try:
        return contents(descriptor, status.st_size)
    finally:
        os.close(descriptor)


def open_path(path: str, *, most: int = MOST_BYTES) -> tuple[int, os.stat_result]:
    """Open a file by its path, and check its folder too; raises as `open_folder` and `open_file`."""
    folder, name = os.path.split(path)
    descriptor = open_folder(folder)
    try:
        return open_file(name, dir_fd=descriptor, most=most)
    finally:
        os.close(descriptor)


def read_path(path: str) -> bytes:
    """Return the bytes of a file by its path; raises as `open_path`."""
    descriptor, status = open_path(path)
    try:
        return contents(descriptor, status.st_size)
    finally:
        os.close(descriptor)
