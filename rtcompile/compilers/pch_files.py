"""Precompiled headers on disk: their records, the check of their files, and eviction."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from rtcompile.files import clocks, sealed
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import SearchDir
from rtcompile.files.sealed import content_digest, stat_of
from rtcompile.store import locks, manifests
from rtcompile.store.folder import Folder

_MOST_BYTES = 1 << 34
_SAMPLES = 64
_SAMPLE_BYTES = 4096

_UNFINISHED_SECONDS = 3600.0  # after which a record that is not published has no writer any more
_UNKNOWN = float("inf")
_COUNTS = struct.Struct("<2qd")

SEEN, READY, REFUSED = "seen", "ready", "refused"
_NO_DEPENDENCIES = FileSet()

# Records as they were read last: each build of a batch asks for the same one.
_parsed: dict[tuple[str, tuple[SearchDir, ...]], tuple[tuple[int, ...], Record]] = {}
_MOST_PARSED = 64

# Identities of files by their path, with the stat that they had.
_imaged: dict[str, tuple[tuple[int, ...], bytes]] = {}


class Record(NamedTuple):
    """What is known of a prefix: seen in builds, ready to be used, or refused.

    While it is only seen, `builds` counts the builds without a precompiled header since one of the files
    changed, `makings` the attempts to make one, and `seconds` is the shortest time that one of the
    builds spent on reading (others may have shared the processor).
    """

    state: str
    trace: tuple[str, ...] = ()
    image: bytes = b""
    checksum: bytes = b""
    dependencies: FileSet = _NO_DEPENDENCIES
    reason: str = ""
    builds: int = 0
    makings: int = 0
    seconds: float = _UNKNOWN

    @classmethod
    def read(cls, path: str, search: Sequence[SearchDir]) -> Record | None:
        try:
            status = os.stat(path)
        except OSError:
            return None
        key = path, tuple(search)
        file = stat_of(status)
        known = _parsed.get(key)
        if known is not None and known[0] == file:
            return known[1]
        record = cls._parse(path, search)
        # What was written within the clock's tick may be written again without a trace.
        if record is not None and status.st_ctime_ns < clocks.file_clock_ns():
            if len(_parsed) >= _MOST_PARSED:
                _parsed.clear()
            _parsed[key] = file, record
        return record

    @classmethod
    def _parse(cls, path: str, search: Sequence[SearchDir]) -> Record | None:
        key = os.path.basename(path)
        try:
            fields = sealed.unseal("pch", key, sealed.read_path(path))
        except OSError:
            return None
        if fields is None or len(fields) != 7:
            return None
        state, trace, image, checksum, dependencies, reason, counts = fields
        builds = manifests.decode(key, dependencies, search)
        if not builds:
            return None
        builds_without, makings, seconds = _COUNTS.unpack(counts)
        paths = trace.decode("utf-8", "surrogateescape").split("\0")
        return cls(
            state.decode(),
            tuple(paths) if trace else (),
            image,
            checksum,
            builds[0].dependencies,
            reason.decode(),
            builds_without,
            makings,
            seconds,
        )

    def write(self, path: str, search: Sequence[SearchDir]) -> bool:
        """Write the record; False where the folder takes no files."""
        build = manifests.ManifestEntry("nvrtc", "", "", self.dependencies)
        key = os.path.basename(path)
        fields = [
            self.state.encode(),
            "\0".join(self.trace).encode("utf-8", "surrogateescape"),
            self.image,
            self.checksum,
            manifests.encode(key, [build], search),
            self.reason.encode(),
            _COUNTS.pack(self.builds, self.makings, self.seconds),
        ]
        try:
            sealed.publish(path, sealed.seal("pch", key, fields), durable=False)
        except OSError:
            return False
        return True


def _open(path: str) -> BinaryIO:
    return open(sealed.open_path(path, most=_MOST_BYTES)[0], "rb", buffering=0)


def image(path: str) -> bytes:
    """Identify a file by its stat and samples (0.5 ms), since hashing 290 MB takes too long."""
    samples = []
    try:
        with _open(path) as file:
            status = os.fstat(file.fileno())
            stat = stat_of(status)
            known = _imaged.get(path)
            if known is not None and known[0] == stat:
                return known[1]
            for i in range(_SAMPLES):
                file.seek(max(0, status.st_size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
                samples.append(file.read(_SAMPLE_BYTES))
    except OSError:
        return b""
    numbers = struct.pack("<3q", status.st_size, status.st_mtime_ns, status.st_ino)
    found = numbers + content_digest(b"".join(samples)).encode()
    # What was written within the clock's tick may be written again without a trace.
    if status.st_ctime_ns < clocks.file_clock_ns():
        if len(_imaged) >= _MOST_PARSED:
            _imaged.clear()
        _imaged[path] = stat, found
    return found


def checksum(path: str) -> bytes:
    """Return the digest of the whole file; half a second for CuTe's."""
    try:
        with _open(path) as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            return bytes.fromhex(content_digest(memoryview(view)))
    except (OSError, ValueError):
        return b""


def changed_since(paths: Sequence[str], record: str) -> bool:
    """Say whether a file is newer than the record: a header that is being edited is not precompiled."""
    try:
        then = os.stat(record).st_mtime_ns
        return any(os.stat(path).st_mtime_ns >= then for path in paths)
    except OSError:
        return True


def sweep(folder: str) -> None:
    """Remove the files of makers that were killed."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            key, _, suffix = entry.name.partition(".")
            with suppress(OSError):
                if not key:  # a record that is being written, or a lock that is being tried
                    if time.time() - entry.stat().st_mtime > _UNFINISHED_SECONDS:
                        os.unlink(entry.path)
                elif suffix == "lock":
                    with locks.machine_wide(entry.path, 0.0):
                        pass  # leaving the block removes the file
                elif suffix.startswith("pch") and _abandoned(folder, key, suffix):
                    os.unlink(entry.path)


def _abandoned(folder: str, key: str, suffix: str) -> bool:
    if suffix == "pch" and os.path.exists(os.path.join(folder, key + ".record")):
        return False
    with locks.machine_wide(os.path.join(folder, key + ".lock"), 0.0) as held:
        return held


def private_folder(cache_dir: str) -> str | None:
    """Return the folder for precompiled headers, which the compiler trusts; None if not private."""
    folder = os.path.join(cache_dir, "pch")
    try:
        os.makedirs(cache_dir, 0o700, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        os.close(Folder(cache_dir).open("pch"))
    except OSError:
        return None
    return None if sealed.can_be_swapped(cache_dir) else folder
