"""Opens files that another user may have prepared: who could have written them is asked of descriptors.

What a cache holds is run: code on the device, libraries in this process. The rule for it:

- A folder is used that belongs to us or to root and that nobody else may write to. It is opened
  without following a link, and judged by the descriptor through which its files are then opened.
- A file is used that is a regular file of such a folder, belongs to us or to root, may be written by
  nobody else, and has no second name. The folder may have been open to everybody once: what others
  made in it then is still theirs, and what they gave a second name in it (a hard link to a file of
  ours that holds what they sent us) has two. Second names are allowed where folder and file are
  both root's and we are not: container images share files in that way.
- Nothing is waited for: a named pipe or a device in a file's place is refused, not read.

What this cannot see is a file of ours that was itself open to others, was changed by them, and was
closed again.

`open_folder` with ``private=False`` is for the folder that holds such folders: it has to be ours or
root's, but its mode is its owner's business. Who may write there can take our folders away; one that
he puts in their place is his, and refused.
"""

from __future__ import annotations

import os
import stat

__all__ = [
    "UntrustedError",
    "can_be_swapped",
    "contents",
    "judge_folder",
    "open_file",
    "open_folder",
    "open_path",
    "open_regular",
    "read",
    "read_given",
    "read_path",
]

MOST_BYTES = 1 << 30  # a larger file is none of ours

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class UntrustedError(OSError):
    """A folder or a file that another user could have made, or that is of another type."""


def open_folder(path: str, *, dir_fd: int | None = None, private: bool = True) -> int:
    """Return a descriptor of a folder whose files may be used.

    Parameters
    ----------
    path : str
        The folder.
    dir_fd : int, optional
        The descriptor of the folder that `path` is relative to.
    private : bool
        Whether its files will be opened. If not, it is the user's to make it a link to another disk
        and to let others write to it.

    Raises
    ------
    UntrustedError
        It is not a folder, is another user's, or others may write to it; the message says which.
    OSError
        It is not there, or cannot be opened.
    """
    try:
        descriptor = os.open(path, _FOLDER | os.O_NOFOLLOW if private else _FOLDER, dir_fd=dir_fd)
    except NotADirectoryError:
        os.stat(
            path, dir_fd=dir_fd, follow_symlinks=False
        )  # it may be a folder above it that is none
        raise UntrustedError(f"{path} is not a directory") from None
    try:
        judge_folder(path, os.fstat(descriptor), private=private)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def judge_folder(path: str, status: os.stat_result, *, private: bool = True) -> None:
    """Raise `UntrustedError` if a folder of this status must not be used, as `open_folder` does."""
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
    """Say whether others may put another folder in the place of one that lies in `path`.

    Then it is only safe to use by descriptor: a program that is given its path could get theirs.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return True
    return bool(mode & _OTHERS_MAY_WRITE) and not mode & stat.S_ISVTX


def open_regular(
    path: str, *, dir_fd: int | None = None, follow: bool = True
) -> tuple[int, os.stat_result]:
    """Return a descriptor and the status of a regular file, whoever it belongs to.

    Raises
    ------
    UntrustedError
        It is a named pipe, a device, a folder or a socket: to read it could take for ever.
    OSError
        It is not there, or cannot be opened.
    """
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
    """Return the bytes of a file that the caller names, whoever it belongs to.

    Raises
    ------
    OSError
        It cannot be read, or is no regular file.
    """
    try:
        descriptor, _ = open_regular(path)
    except ValueError as error:  # a NUL, which no path holds
        raise OSError(str(error)) from None
    with open(descriptor, "rb") as file:
        return file.read()


def open_file(name: str, *, dir_fd: int, most: int = MOST_BYTES) -> tuple[int, os.stat_result]:
    """Return a descriptor and the status of a file that may be used.

    Parameters
    ----------
    name : str
        The file's name.
    dir_fd : int
        Its folder, from `open_folder`.
    most : int
        Bytes that it may have.

    Raises
    ------
    UntrustedError
        It must not be used; the message says why.
    OSError
        It is not there, or cannot be opened.
    """
    try:
        descriptor, status = open_regular(name, dir_fd=dir_fd, follow=False)
    except OSError as error:
        import errno

        # A link; a socket or a device without a driver.
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
        us and not status.st_uid and not os.fstat(dir_fd).st_uid  # root's, in a folder of root's
    ):
        why = "has a second name"
    elif status.st_size > most:
        why = f"has {status.st_size} bytes, more than {most}"
    if why:
        os.close(descriptor)
        raise UntrustedError(f"{name} {why}")
    return descriptor, status


def contents(descriptor: int, size: int) -> bytes:
    """Return the first `size` bytes of a file, fewer if it ends before."""
    data = os.read(descriptor, size)
    while 0 < len(data) < size:
        more = os.read(descriptor, size - len(data))
        if not more:
            break
        data += more
    return data


def read(name: str, *, dir_fd: int, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file that may be used; raises as `open_file`."""
    descriptor, status = open_file(name, dir_fd=dir_fd, most=most)
    try:
        return contents(descriptor, status.st_size)
    finally:
        os.close(descriptor)


def open_path(path: str, *, most: int = MOST_BYTES) -> tuple[int, os.stat_result]:
    """Open a file by its path, and judge its folder too; as `open_folder` and `open_file`."""
    folder, name = os.path.split(path)
    descriptor = open_folder(folder)
    try:
        return open_file(name, dir_fd=descriptor, most=most)
    finally:
        os.close(descriptor)


def read_path(path: str, *, most: int = MOST_BYTES) -> bytes:
    """Return the bytes of a file that may be used, as may its folder; raises as `open_path`."""
    descriptor, status = open_path(path, most=most)
    try:
        return contents(descriptor, status.st_size)
    finally:
        os.close(descriptor)
