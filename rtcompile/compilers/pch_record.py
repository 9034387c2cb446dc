"""The record of a precompiled header on disk, the checks of its files, and the folder for both."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from rtcompile.files import sealed
from rtcompile.files.fileset import PACKED_FIELDS, FileSet, joined, texts_in
from rtcompile.files.sealed import stat_of
from rtcompile.store.folder import Folder

UNKNOWN = float("inf")
_COUNTS = struct.Struct("<3qd")
_DIGEST_BYTES = 16
_OWN_FIELDS = 4

_NO_DEPENDENCIES = FileSet()


class Record(NamedTuple):
    """The record of a prefix; it has an image if there is a precompiled header."""

    trace: tuple[str, ...] = ()
    image: bytes = b""
    dependencies: FileSet = _NO_DEPENDENCIES
    builds: int = 0  # without a precompiled header, since one of the files changed
    failures: int = 0  # attempts to make one, or to use it, that failed
    seconds: float = UNKNOWN  # the shortest time in which a build read its source
    repeats: int = 0  # builds of a program that had been built before, as during editing
    programs: tuple[bytes, ...] = ()  # digests of the last programs

    @classmethod
    def read(cls, path: str) -> Record | None:
        """Return the record at a path; None if it is missing or damaged."""
        try:
            fields = sealed.unseal("pch", os.path.basename(path), sealed.read_path(path))
        except OSError:
            return None
        if fields is None or len(fields) != _OWN_FIELDS + PACKED_FIELDS:
            return None
        trace, image, counts, programs, *files = fields
        builds, failures, repeats, seconds = _COUNTS.unpack(counts)
        return cls(
            tuple(texts_in(trace)),
            image,
            FileSet.unpacked(files),
            builds,
            failures,
            seconds,
            repeats,
            tuple(
                [programs[at : at + _DIGEST_BYTES] for at in range(0, len(programs), _DIGEST_BYTES)]
            ),
        )

    def write(self, path: str) -> bool:
        """Write the record; False if the folder is not writable."""
        fields = [
            joined(self.trace),
            self.image,
            _COUNTS.pack(self.builds, self.failures, self.repeats, self.seconds),
            b"".join(self.programs),
            *self.dependencies.packed(()),
        ]
        try:
            sealed.publish(path, sealed.seal("pch", os.path.basename(path), fields), durable=False)
        except OSError:
            return False
        return True


def image(path: str) -> bytes:
    """Return a file's identity: its stat, since hashing 290 MB takes half a second."""
    try:
        status = os.lstat(path)
    except OSError:
        return b""
    return struct.pack("<4q", *stat_of(status)) if stat.S_ISREG(status.st_mode) else b""


def changed_since(paths: Sequence[str], record: str) -> bool:
    """Return whether a file is newer than the record, since headers that are being edited are not precompiled."""
    try:
        then = os.stat(record).st_mtime_ns
        return any(os.stat(path).st_mtime_ns >= then for path in paths)
    except OSError:
        return True


def has_private_folder(cache_dir: str) -> bool:
    """Return whether the folder for precompiled headers, which the compiler trusts, is private; make it if needed."""
    try:
        os.makedirs(cache_dir, 0o700, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(os.path.join(cache_dir, "pch"), 0o700)
        os.close(Folder(cache_dir).open("pch"))
    except OSError:
        return False
    return not sealed.can_be_swapped(cache_dir)
