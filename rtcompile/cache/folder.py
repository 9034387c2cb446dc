"""The cache's directory: ours or root's, and in it folders that nobody else may write to.

Every file in it is opened through the descriptor of its folder, by `trusted`'s rule. The directory's
own mode is the user's: nothing lies in it but our folders, and no folder that was there is chmodded.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from rtcompile.cache import files
from rtcompile.storage import trusted
from rtcompile.storage.trusted import UntrustedError

__all__ = ["FOLDERS", "NOTES", "REFUSALS", "Folder", "UntrustedError"]

NOTES = ("books", "notes")
REFUSALS = ("books", "refusals")  # empty; where it is not, the books hold none and stay shut
FOLDERS = (
    "answers",
    "objects",
    "manifests",
    "portable",
    "pch",
    "locks",
    "books",
    "toolchains",
    "sources",
    "reproducers",
)

_NOTE = struct.Struct("<4q")  # hits, builds, fetched builds, bytes written


class Notes(NamedTuple):
    """What processes did since the books were kept last: a line each time, without a database."""

    lines: int = 0
    hits: int = 0
    misses: int = 0
    fetched: int = 0
    written: int = 0


class Folder:
    """A directory tree.

    Attributes
    ----------
    path : str
    writable : bool
        While it is False nothing in it is touched: no use is noted, no damaged file removed.
    """

    def __init__(self, path: str, *, writable: bool = True) -> None:
        self.path = path
        self.writable = writable

    def file(self, *parts: str) -> str:
        """Return the path of a file below: for messages, and for programs that take no descriptor."""
        return "/".join((self.path, *parts))

    # --- by descriptor -------------------------------------------------------------------

    def open(self, kind: str) -> int:
        """Return a descriptor of one of `FOLDERS`; raises as `trusted.open_folder`."""
        top = trusted.open_folder(self.path, private=False)
        try:
            return trusted.open_folder(kind, dir_fd=top)
        except UntrustedError as error:
            raise UntrustedError(f"{self.path}/{error}") from None
        finally:
            os.close(top)

    @contextmanager
    def opened(self, kind: str) -> Iterator[int]:
        """Give a descriptor of one of `FOLDERS`, and close it."""
        descriptor = self.open(kind)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def read(self, kind: str, name: str) -> bytes | None:
        """Return a file's bytes and note its use; None if there is none that may be used.

        What stands in its place and must not be used is removed.
        """
        try:
            folder = self.open(kind)
        except OSError:
            return None
        try:
            descriptor, status = trusted.open_file(name, dir_fd=folder)
            try:
                data = trusted.contents(descriptor, status.st_size)
                if self.writable and abs(time.time() - status.st_mtime) > files.USE_RESOLUTION:
                    with suppress(OSError):  # read-only
                        os.utime(descriptor)
                return data
            finally:
                os.close(descriptor)
        except UntrustedError:
            if self.writable:
                files.discard(name, dir_fd=folder)
            return None
        except OSError:
            return None
        finally:
            os.close(folder)

    def publish(self, kind: str, name: str, data: bytes) -> None:
        """Put a file there in one step; raises as `files.publish` and `trusted.open_folder`.

        Nobody waits for the disk: what is here outlives its process, however that ends. What a power
        cut takes is found to be damaged, and built again; but a source says nothing of itself.
        """
        with self.opened(kind) as folder:
            files.publish(name, data, dir_fd=folder, durable=kind == "sources")

    def discard(self, kind: str, name: str) -> None:
        """Remove a file if it is there and can be removed."""
        if self.writable:
            with suppress(OSError), self.opened(kind) as folder:
                files.discard(name, dir_fd=folder)

    def note(self, *, hits: int = 0, misses: int = 0, fetched: int = 0, written: int = 0) -> Notes:
        """Add a line to the notes, which outlives a process that ends at once; return them all."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with self.opened(NOTES[0]) as folder:
                descriptor = os.open(NOTES[1], flags | os.O_NONBLOCK, 0o600, dir_fd=folder)
                try:
                    os.write(descriptor, _NOTE.pack(hits, misses, fetched, written))
                finally:
                    os.close(descriptor)
                return _sum(trusted.read(NOTES[1], dir_fd=folder))
        except OSError:
            return Notes()

    def take_notes(self) -> Notes:
        """Return the notes, and begin new ones."""
        taken = f"{NOTES[1]}-{os.getpid()}"
        try:
            with self.opened(NOTES[0]) as folder:
                os.rename(NOTES[1], taken, src_dir_fd=folder, dst_dir_fd=folder)
                try:
                    return _sum(trusted.read(taken, dir_fd=folder))
                finally:
                    files.discard(taken, dir_fd=folder)
        except OSError:
            return Notes()

    def listing(self, kind: str) -> list[tuple[str, os.stat_result]]:
        """Return each name in one of `FOLDERS` with its status; none where it must not be used."""
        found = []
        with suppress(OSError), self.opened(kind) as folder:
            for name in os.listdir(folder):
                with suppress(OSError):  # evicted a moment ago
                    found.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
        return found

    # --- as a whole ----------------------------------------------------------------------

    def check(self) -> bool:
        """Say whether the directory is there to be read.

        Raises
        ------
        UntrustedError
            It is another user's; or a folder in it is, is a link, or can be written by others.
        """
        try:
            top = trusted.open_folder(self.path, private=False)
        except UntrustedError:
            raise
        except OSError:
            return False
        try:
            for name in FOLDERS:
                try:
                    status = os.stat(name, dir_fd=top, follow_symlinks=False)
                except OSError:
                    continue
                trusted.judge_folder(f"{self.path}/{name}", status)
        finally:
            os.close(top)
        return True

    def prepare(self) -> None:
        """Make the directory and its folders where they are missing; raise OSError if that fails."""
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        top = trusted.open_folder(self.path, private=False)
        try:
            for name in FOLDERS:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=top)
        finally:
            os.close(top)
        self.check()


def _sum(notes: bytes) -> Notes:
    lines = list(_NOTE.iter_unpack(notes[: len(notes) // _NOTE.size * _NOTE.size]))
    return Notes(len(lines), *map(sum, zip(*lines, strict=True))) if lines else Notes()
