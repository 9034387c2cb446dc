"""Precompiled headers: an include prefix is parsed once, and every later build that opens with it is spared that.

NVRTC uses whatever file it is given, stale or not, so all that decides is ours: a header's key has
the compiler, its heap's place, the options and the prefix; its record has the dependencies, by
content. It is made beside the second build that wants it, in a process of its own, so no build waits
for it; it is tried before it is published; what fails with it is built again without.
"""

from __future__ import annotations

import contextvars
import functools
import hashlib
import mmap
import os
import signal
import stat
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rtcompile import tracing
from rtcompile.cache import files, headers, locks, manifests
from rtcompile.core import includes
from rtcompile.core.includes import Dependencies
from rtcompile.core.key import content_digest, digest, field
from rtcompile.core.request import Limits, SearchDir, TranslationUnit
from rtcompile.settings import Settings
from rtcompile.workers import heap, pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from rtcompile.toolkit.model import Library

__all__ = ["Precompiled", "Prefix"]

# Options that neither the front end sees nor NVRTC compares: one header serves all their values.
_FREE = ("--maxrregcount", "--ptxas-options", "--split-compile", "--frandom-seed")
MAKER = "rtcompile-pch"  # the name of the threads that wait for one to be made
_WORTH_SECONDS = 0.1
_TIMEOUT = 300.0
_SAMPLES = 64
_SAMPLE_BYTES = 4096

_guard = threading.Lock()
_wanted: Counter[str] = Counter()  # builds under way, by the key of their prefix
_making: set[str] = set()


@dataclass(frozen=True, slots=True)
class Precompiled:
    """A precompiled header that is there and current; `trace` lists the headers in it."""

    path: str
    trace: tuple[str, ...]


class Prefix:
    """The include prefix of one unit, under one compiler and one set of options."""

    def __init__(
        self,
        text: str,
        unit: TranslationUnit,
        library: Library,
        search: Sequence[SearchDir],
        folder: str,
        make_job: Callable[..., pool.Job],
    ) -> None:
        self.text = text
        self.name = unit.name
        self.options = tuple(flag for flag in unit.flags if not flag.startswith(_FREE))
        self.search = search
        self.folder = folder
        self.key = digest(
            [
                field("nvrtc", library.identity()),
                field("heap", f"{heap.BASE:x}+{heap.SIZE:x}"),
                *(field("option", option) for option in self.options),
                # `#include "…"` looks beside the program first.
                field("directory", os.path.dirname(unit.name)),
                field("prefix", text),
            ]
        )
        self._path = os.path.join(folder, self.key + ".pch")
        self._record = os.path.join(folder, self.key + ".record")
        self._make_job = make_job

    @contextmanager
    def wanted(self) -> Iterator[None]:
        """Hold while a build that could use the header is under way: two at once call for making it."""
        with _guard:
            _wanted[self.key] += 1
            several = _wanted[self.key] > 1
        try:
            if several:
                self._make_beside()
            yield
        finally:
            with _guard:
                _wanted[self.key] -= 1
                if not _wanted[self.key]:
                    del _wanted[self.key]

    def find(self) -> Precompiled | None:
        """Return the header if there is one and nothing in it has changed."""
        record = _Record.read(self._record, self.search)
        if record is None:
            return None
        if record.state == _SEEN and not _changed_since(record.trace, self._record):
            self._make_beside()
        if record.state != _READY:
            return None
        if record.image != _image(self._path) or not headers.unchanged(record.dependencies):
            self._drop()
            return None
        with suppress(OSError):
            os.utime(self._record)  # last use, for eviction
        return Precompiled(self._path, record.trace)

    def built(self, trace: Sequence[str], seconds: float) -> None:
        """Note a build that had to do without: it was the first, and worth sparing the next one."""
        if seconds < _WORTH_SECONDS or not trace:
            return
        record = _Record.read(self._record, self.search)
        if record is None or record.state == _SEEN:
            _Record(_SEEN, tuple(trace)).write(self._record, self.search)

    def blame(self, reason: str) -> None:
        """Remove a header with which a compiler failed; make another only if this one was damaged."""
        record = _Record.read(self._record, self.search)
        damaged = record is not None and record.checksum != _checksum(self._path)
        self._drop("" if damaged else reason)

    def _drop(self, reason: str = "") -> None:
        """Remove the header; with a reason never to make it again."""
        files.discard(self._path)
        files.discard(self._record)
        if reason:
            _Record(_REFUSED, reason=reason).write(self._record, self.search)

    def _make_beside(self) -> None:
        with _guard:
            if self.key in _making:
                return
            _making.add(self.key)
        try:
            context = contextvars.copy_context()
            context.run(pool.Cancellation.current.set, None)  # others will want it, if not this one
            run = functools.partial(context.run, self._make)
            threading.Thread(target=run, name=MAKER, daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter is on its way out
            with _guard:
                _making.discard(self.key)

    def _make(self) -> None:
        try:
            self.make()
        finally:
            with _guard:
                _making.discard(self.key)

    def make(self) -> bool:
        """Make the header unless it is there, refused, or being made; say whether it is there."""
        with locks.machine_wide(os.path.join(self.folder, self.key + ".lock"), 0.0) as held:
            record = _Record.read(self._record, self.search)
            if not held or (record is not None and record.state != _SEEN):
                return record is not None and record.state == _READY
            started_ns = headers.file_clock_ns()
            temporary = f"{self._path}.tmp"
            job = self._make_job(
                "precompile",
                {
                    "source": self.text.encode(),
                    "name": self.name.encode(),
                    "options": [option.encode() for option in self.options],
                    "temporary": os.fsencode(temporary),
                    "path": os.fsencode(self._path),
                },
                warm=True,
            )
            with tracing.span("precompile", prefix=self.text):
                outcome = pool.run_beside(job, Limits(timeout=_TIMEOUT), (temporary,))
            if isinstance(outcome, pool.Death):
                killed = outcome.signal == signal.SIGKILL and outcome.kind == "crash"
                if not killed:  # by somebody who needed the memory, say: no fault of the prefix
                    self._drop(f"making it ended in a {outcome.kind}")
                return False
            return self._publish(outcome.value, started_ns)

    def _publish(self, made: dict[str, Any], started_ns: int) -> bool:
        if not made["heap"]:
            return False  # a matter of this process's limits, not of this prefix
        if made["problem"]:
            self._drop(made["problem"])
            return False
        spared = made["make"] - made["use"]
        if spared < _WORTH_SECONDS:
            self._drop(f"it would spare {spared * 1000:.0f} ms")
            return False
        trace = includes.parse_trace(made["trace"])
        dependencies = headers.record(trace, self.search, source=self.text, name=self.name)
        if dependencies.uncacheable:
            self._drop(dependencies.uncacheable)
            return False
        if dependencies.newest_ns >= started_ns:
            self._drop()  # edited while we read it: which text is in there, nobody knows
            return False
        record = _Record(_READY, trace, _image(self._path), _checksum(self._path), dependencies)
        if not record.write(self._record, self.search):
            self._drop()
            return False
        evict(self.folder, Settings.from_environ().cache_size // 2, keep=self.key)
        return True


def _forget_after_fork() -> None:
    # The makers are threads of the parent: here nobody would ever finish.
    global _guard
    _guard = threading.Lock()
    _wanted.clear()
    _making.clear()


os.register_at_fork(after_in_child=_forget_after_fork)


_SEEN, _READY, _REFUSED = "seen", "ready", "refused"
_NO_DEPENDENCIES = Dependencies()


@dataclass(frozen=True, slots=True)
class _Record:
    """What is known of a prefix: seen once, ready to be used, or refused."""

    state: str
    trace: tuple[str, ...] = ()
    image: bytes = b""
    checksum: bytes = b""
    dependencies: Dependencies = _NO_DEPENDENCIES
    reason: str = ""

    @classmethod
    def read(cls, path: str, search: Sequence[SearchDir]) -> _Record | None:
        data = files.read(path)
        fields = None if data is None else files.unseal("pch", data)
        if fields is None or len(fields) != 6:
            return None
        state, trace, image, checksum, dependencies, reason = fields
        builds = manifests.decode(dependencies, search)
        if not builds:
            return None
        paths = trace.decode("utf-8", "surrogateescape").split("\0")
        return cls(
            state.decode(),
            tuple(paths) if trace else (),
            image,
            checksum,
            builds[0].dependencies,
            reason.decode(),
        )

    def write(self, path: str, search: Sequence[SearchDir]) -> bool:
        """Write the record; False where the folder takes no files."""
        build = manifests.Build("nvrtc", "", "", self.dependencies)
        fields = [
            self.state.encode(),
            "\0".join(self.trace).encode("utf-8", "surrogateescape"),
            self.image,
            self.checksum,
            manifests.encode([build], search),
            self.reason.encode(),
        ]
        try:
            files.publish(path, files.seal("pch", fields))
        except OSError:
            return False
        return True


def _image(path: str) -> bytes:
    """Return what tells a file from a damaged or another one: its stat, and samples of its content.

    Half a millisecond; the whole 290 MB of CuTe's would take as long to hash as it spares.
    """
    samples = []
    try:
        with open(path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid():
                return b""
            for i in range(_SAMPLES):
                file.seek(max(0, status.st_size - _SAMPLE_BYTES) * i // (_SAMPLES - 1))
                samples.append(file.read(_SAMPLE_BYTES))
    except OSError:
        return b""
    numbers = struct.pack("<3q", status.st_size, status.st_mtime_ns, status.st_ino)
    return numbers + content_digest(b"".join(samples)).encode()


def _checksum(path: str) -> bytes:
    """Return the digest of the whole file; half a second for CuTe's."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            return hashlib.blake2b(view, digest_size=32).digest()
    except (OSError, ValueError):
        return b""


def _changed_since(paths: Sequence[str], record: str) -> bool:
    """Say whether a file is younger than the record: a header under edit is not worth precompiling."""
    try:
        then = os.stat(record).st_mtime_ns
        return any(os.stat(path).st_mtime_ns >= then for path in paths)
    except OSError:
        return True


def evict(folder: str, most_bytes: int, keep: str = "") -> None:
    """Remove the headers used longest ago beyond `most_bytes`, and what dead makers left.

    Whoever reads one at that moment keeps it: the file loses its name only.
    """
    entries = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            key, _, suffix = entry.name.partition(".")
            with suppress(OSError):
                if suffix == "record" and key != keep:
                    size = entry.stat().st_size
                    with suppress(OSError):
                        size += os.stat(os.path.join(folder, key + ".pch")).st_size
                    entries.append((entry.stat().st_mtime_ns, size, key))
                elif suffix in ("pch", "pch.tmp") and _abandoned(folder, key, suffix):
                    os.unlink(entry.path)
    total = sum(size for _, size, _ in entries)
    with suppress(OSError):
        total += os.stat(os.path.join(folder, keep + ".pch")).st_size
    for _, size, key in sorted(entries):
        if total <= most_bytes:
            break
        files.discard(os.path.join(folder, key + ".record"))
        files.discard(os.path.join(folder, key + ".pch"))
        total -= size


def _abandoned(folder: str, key: str, suffix: str) -> bool:
    if suffix == "pch" and os.path.exists(os.path.join(folder, key + ".record")):
        return False
    with locks.machine_wide(os.path.join(folder, key + ".lock"), 0.0) as held:
        return held


def private_folder(cache_dir: str) -> str | None:
    """Return the folder for precompiled headers; None where it is not ours alone.

    A compiler that is given somebody else's file runs somebody else's code.
    """
    folder = os.path.join(cache_dir, "pch")
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        status = os.stat(folder)
    except OSError:
        return None
    ours = status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o022
    return folder if ours else None
