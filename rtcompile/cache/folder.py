"""The cache's directory: private to its owner, or not used."""

from __future__ import annotations

import os
import stat
from contextlib import suppress

__all__ = ["HITS", "REFUSALS", "Folder", "UntrustedError"]

HITS = ("books", "hits")  # noted here by processes that only had hits: no database for them
REFUSALS = ("books", "refusals")  # empty; where it is not, the books hold none and stay shut
FOLDERS = ("objects", "manifests", "pch", "locks", "books", "toolchains")


class UntrustedError(OSError):
    """The directory belongs to somebody else: what it holds is somebody else's code."""


class Folder:
    """A directory tree of ours, mode 0700."""

    def __init__(self, path: str) -> None:
        self.path = path

    def file(self, *parts: str) -> str:
        """Return the path of a file below."""
        return "/".join((self.path, *parts))

    def note_hits(self, count: int) -> None:
        """Leave a count of hits for the books, without opening them."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with suppress(OSError):  # statistics
            descriptor = os.open(self.file(*HITS), flags, 0o600)
            try:
                os.write(descriptor, count.to_bytes(8, "little"))
            finally:
                os.close(descriptor)

    def check(self) -> bool:
        """Say whether the directory is there to be read.

        Raises
        ------
        UntrustedError
            It, or a folder in it, is another user's, is open to others, or is a symbolic link.
        """
        try:
            status = os.stat(self.path)  # a link to another disk is the user's to make
        except OSError:
            return False
        _insist(self.path, status)
        for name in FOLDERS:
            path = self.file(name)
            try:
                status = os.lstat(path)
            except OSError:
                continue
            _insist(path, status)
        return True

    def prepare(self) -> None:
        """Make the directory and its folders where they are missing; raise OSError if that fails."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        for name in FOLDERS:
            path = self.file(name)
            if not os.path.lexists(path):
                with suppress(FileExistsError):
                    os.mkdir(path, 0o700)
        self.check()


def _insist(path: str, status: os.stat_result) -> None:
    if not stat.S_ISDIR(status.st_mode):
        raise UntrustedError(f"{path} is not a directory")
    if status.st_uid != os.geteuid():
        raise UntrustedError(f"{path} belongs to user {status.st_uid}, not to {os.geteuid()}")
    if status.st_mode & 0o077:
        try:
            os.chmod(path, 0o700)
        except OSError:
            if status.st_mode & 0o022:
                raise UntrustedError(f"{path} can be written by others") from None
