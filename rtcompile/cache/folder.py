"""The cache's directory, which belongs to this user or root, with folders only they can write to.

Every file is opened through the descriptor of its folder, by the rule of `trusted`. The mode of the
directory itself is left to the user, since it holds nothing but these folders; no existing folder
is chmodded.
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
REFUSALS = ("books", "refusals")  # an empty file, which exists if the books hold refusals
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
    """What processes did since the books were last updated, kept as records in a plain file."""

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
        If False, nothing is changed: no use is noted and no damaged file removed.
    """

    def __init__(self, path: str, *, writable: bool = True) -> None:
        self.path = path
        self.writable = writable

    def file(self, *parts: str) -> str:
        """Return the path of a file, for messages and for programs that take no descriptor."""
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
        """Yield a descriptor of one of `FOLDERS`, and close it at the end."""
        descriptor = self.open(kind)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def read(self, kind: str, name: str) -> bytes | None:
        """Return a file's bytes and note its use; None if it does not exist or is not trusted.

        A file that is not trusted is removed.
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
        """Write a file by rename; raises as `files.publish` and `trusted.open_folder`.

        The disk is not waited for. The file outlives a killed process; if a power cut damages it,
        its digest shows that, and it is built again. Only a source has no digest of its own.
        """
        with self.opened(kind) as folder:
            files.publish(name, data, dir_fd=folder, durable=kind == "sources")

    def discard(self, kind: str, name: str) -> None:
        """Remove a file if it is there and can be removed."""
        if self.writable:
            with suppress(OSError), self.opened(kind) as folder:
                files.discard(name, dir_fd=folder)

    def note(self, *, hits: int = 0, misses: int = 0, fetched: int = 0, written: int = 0) -> int:
        """Append a record to the notes at once, so that a killed process loses none.

        Returns the number of records; `notes` adds them up.
        """
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with self.opened(NOTES[0]) as folder:
                descriptor = os.open(NOTES[1], flags | os.O_NONBLOCK, 0o600, dir_fd=folder)
                try:
                    os.write(descriptor, _NOTE.pack(hits, misses, fetched, written))
                    return os.fstat(descriptor).st_size // _NOTE.size
                finally:
                    os.close(descriptor)
        except OSError:
            return 0

    def notes(self) -> Notes:
        """Return the sum of the notes."""
        try:
            with self.opened(NOTES[0]) as folder:
                return _sum(trusted.read(NOTES[1], dir_fd=folder))
        except OSError:
            return Notes()

    def take_notes(self) -> Notes:
        """Return the notes, and start empty ones."""
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
        """Return each name in one of `FOLDERS` with its status; none if the folder is not trusted."""
        found = []
        with suppress(OSError), self.opened(kind) as folder:
            for name in os.listdir(folder):
                with suppress(OSError):  # it was evicted just now
                    found.append((name, os.stat(name, dir_fd=folder, follow_symlinks=False)))
        return found

    # --- as a whole ----------------------------------------------------------------------

    def check(self) -> bool:
        """Say whether the directory exists and can be read.

        Raises
        ------
        UntrustedError
            Another user owns it, or a folder in it belongs to another user, is a link, or can be
            written by others.
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
