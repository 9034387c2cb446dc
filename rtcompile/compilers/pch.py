"""Precompiled headers: the includes that open a source are parsed once, and later builds skip them.

A header is made in a job of its own, from the prefix alone: one made from a whole source has the directives after the
prefix too, and NVRTC refuses it for sources without them. At the first build with a long prefix, an idle core makes the
header, at low priority, while that build runs without it. Such a header is speculative: at most `_MOST_UNUSED` of a
process may be unused. If no core is idle, or so many are unused, a build has the header made before it runs, as soon as
the builds so far could have saved what that costs. While a header is being made, a build waits for it only if it should
soon be done, and at most half of the time that it would save. In a batch with more builds than slots, some builds go
ahead and the others wait. A build that fails with a header is repeated without it.

NVRTC uses any file that it is given, even an outdated one, so rtcompile has to check it. The key of a precompiled
header contains the compiler, the address of its heap, the options and the prefix. Its record contains the
dependencies, with their contents' digests.
"""

from __future__ import annotations

import contextvars
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from rtcompile import __version__, forks
from rtcompile.files import sealed
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import file_clock_ns
from rtcompile.named import NamedTuple
from rtcompile.request.key import digest, field
from rtcompile.request.object_code import Record, decode_records, encode_records
from rtcompile.request.units import Compiled, CompileFailure, TranslationUnit
from rtcompile.settings import Settings
from rtcompile.store import inventory, locks
from rtcompile.store.folder import Folder, at_end
from rtcompile.workers import pool, probes

if TYPE_CHECKING:
    from rtcompile.toolkit.model import Library

# Options that the front end does not see and NVRTC does not compare. They are not in the key.
_FREE = ("--maxrregcount", "--ptxas-options", "--split-compile", "--frandom-seed")
_FRESH_SECONDS = 0.5
_POLL_SECONDS = 0.005  # seconds between two checks of a build that waits
# A build with a shorter time limit makes no header, and the others spend at most this part of it on one.
_LEAST_TIMEOUT, _PART_OF_TIMEOUT = 30.0, 1 / 3

# What a header costs and saves, in parts of the front end's time and in seconds, measured with CuTe, CUB and CuPy.
_SAVED_PART = 0.8  # the rest is the user's own text
_USE = 0.015  # to check that it is current, and to map it
_MAKE_PART, _MAKE = 1.5, 0.01  # to read the headers, and to write 6 to 290 MB
_LEAST_SAVED = 0.005
_LEAST_BYTES = 4 << 20  # of a header: the smallest seen has 6 MB

# A build that takes fewer seconds has no long prefix; in a new process, starting the compiler takes most of them.
_SOON = 0.1
# How many headers that a process had made by idle cores may be unused. This bounds the time spent on headers that are
# never used, since most projects build each kernel once.
_MOST_UNUSED = 4

# How many builds with the same prefix are known to come, this one included.
expected: contextvars.ContextVar[int] = contextvars.ContextVar("rtcompile_expected", default=1)


def worth_making(builds: int, front_end: float, failures: int = 0) -> bool:
    """Return whether the builds so far could have saved what it costs to have the header made before a build."""
    saved = _saved(front_end)
    return saved >= _LEAST_SAVED and builds * saved >= _cost(front_end) * (1 << min(failures, 64))


def is_worth_waiting(uses: float, front_end: float, begun: float, waited: float) -> bool:
    """Return whether to wait, or to wait longer, for a header that was begun `begun` seconds ago."""
    gain = uses * _saved(front_end)  # `uses`: how many builds it would serve, one after another
    return _cost(front_end) - begun < gain and waited < gain


def _saved(front_end: float) -> float:
    return _SAVED_PART * front_end - _USE


def _cost(front_end: float) -> float:
    return _MAKE_PART * front_end + _MAKE


# --- The record of a prefix on disk, and the folder of records and headers ---------------------------

UNKNOWN = float("inf")


class PrefixRecord(NamedTuple):
    """The record of a prefix; its `image` identifies the precompiled header, if there is one."""

    image: str = ""
    dependencies: FileSet = FileSet()  # of the header, else of the last build
    builds: int = 0  # builds without a precompiled header since one of the files changed
    failures: int = 0  # attempts to make one, or to use it, that failed
    seconds: float = UNKNOWN  # the shortest time in which a build read its source

    @property
    def trace(self) -> tuple[str, ...]:
        """The headers in it."""
        return tuple([header.path for header in self.dependencies.headers])

    @classmethod
    def read(cls, cache_dir: str, key: str) -> PrefixRecord:
        """Return the record of a prefix; an empty one if it is missing or damaged."""
        folder = Folder(cache_dir, writable=False)  # reading does not count as use
        for record in folder.decoded("pch", f"{key}.record", decode_records) or ():
            builds, failures, seconds = record.notes
            return cls(record.object_key, record.files, int(builds), int(failures), float(seconds))
        return cls()

    def write(self, cache_dir: str, key: str) -> bool:
        """Write the record; False if the folder is not writable."""
        name, numbers = f"{key}.record", map(str, (self.builds, self.failures, self.seconds))
        record = Record(self.dependencies, self.image, notes=tuple(numbers))
        try:
            Folder(cache_dir).publish("pch", name, encode_records(name, [record]))
        except OSError:
            return False
        return True


def image(path: str) -> str:
    """Return a file's identity: its stat, since hashing 290 MB takes half a second."""
    try:
        status = os.lstat(path)
    except OSError:
        return ""
    return str(sealed.stat_of(status)) if stat.S_ISREG(status.st_mode) else ""


def has_private_folder(cache_dir: str) -> bool:
    """Return whether the folder for precompiled headers, which the compiler trusts, is private; make it if needed."""
    folder = Folder(cache_dir)
    try:
        if not (folder.has("pch", ".") and folder.has("locks", ".")):
            folder.prepare()
        with folder.open("pch"):
            return not sealed.can_be_swapped(cache_dir)
    except OSError:
        return False


# --- Uses and makes precompiled headers --------------------------------------------------------------


# This lock guards the tables below. With it, one thread at a time checks that a header is current; the others of its
# batch use it. Sixteen threads that check 392 files each take 150 ms, and spend 145 of them on handing over the GIL.
_lock = forks.lock()
_found: dict[str, tuple[float, PrefixRecord]] = {}  # by key, with the time it was looked for
# The times at which builds and threads of this process began to make a header, by its key.
_making: dict[str, float] = {}
_ahead: Counter[str] = Counter()  # how many builds came while it was being made
# The threads that make a header on an idle core, or made one that no build has used, by its key.
_unused: dict[str, tuple[threading.Thread, pool.Cancellation]] = {}

# Compiles a prefix alone to a header of this path within so many seconds, on an idle core or in a slot; returns the
# outcome and the front end's seconds.
Make = Callable[[str, float, bool], "tuple[Compiled | CompileFailure, float]"]


class Prefix:
    """The include prefix of one unit, under one compiler and one set of options; `alone` is the unit with it only."""

    MAX_SECONDS = 60.0  # for making a header, and for waiting until one is made

    def __init__(
        self, alone: TranslationUnit, library: Library, cache_dir: str, make: Make
    ) -> None:
        self.key = digest(
            [
                # Another version of rtcompile may add other options.
                field("rtcompile", __version__),
                field("nvrtc", library.identity()),
                field("heap", f"{probes.HEAP_BASE:x}+{probes.HEAP_SIZE:x}"),
                *(field("option", flag) for flag in alone.flags if not flag.startswith(_FREE)),
                # `#include "…"` looks beside the program first.
                field("directory", os.path.dirname(alone.name)),
                field("prefix", alone.source),
            ]
        )
        self._cache_dir = cache_dir
        self.make = make
        self.path = f"{cache_dir}/pch/{self.key}.pch"
        self._record = f"{cache_dir}/pch/{self.key}.record"
        self._began = time.monotonic()
        self._began_ns = file_clock_ns()

    @contextmanager
    def wanted(self, timeout: float | None) -> Iterator[None]:
        """Have the header made, here or by an idle core, or wait for it, if that pays; then run the body, a build."""
        with ExitStack() as stack:
            if (timeout is None or timeout >= _LEAST_TIMEOUT) and self.find() is None:
                record = self._known()
                if self._is_due(record):
                    seconds = (timeout or UNKNOWN) * _PART_OF_TIMEOUT
                    self._make(record, min(seconds, self.MAX_SECONDS))
                else:
                    stack.callback(self.speculate(record).cancel)
            self._wait()
            yield

    def find(self) -> PrefixRecord | None:
        """Return the record if there is a header and nothing in it has changed since this build began."""
        with _lock:
            looked, header = _found.get(self.key, (0.0, None))
            now = time.monotonic()
            if header is None or looked < max(self._began, now - _FRESH_SECONDS):
                header = self._look()
                if header is not None:
                    _found[self.key] = now, header
            return header

    def _look(self) -> PrefixRecord | None:
        record = self._known()
        if not record.image or not has_private_folder(self._cache_dir):
            return None
        now = record.dependencies.current()
        if now is None or record.image != image(self.path):
            self._drop()
            return None
        if now is not record.dependencies:  # touched or moved
            record = record._replace(dependencies=now)
            record.write(self._cache_dir, self.key)
        sealed.note_use(self._record)
        _unused.pop(self.key, None)
        return record

    def _known(self) -> PrefixRecord:
        return PrefixRecord.read(self._cache_dir, self.key)

    def _is_due(self, record: PrefixRecord) -> bool:
        """Return whether a build has the header made before it runs."""
        if record.seconds == UNKNOWN:  # no build with this prefix has ended yet
            return expected.get() > pool.slots()
        if record.dependencies.current() is None:
            return False  # headers that are being edited are not precompiled
        return worth_making(record.builds + expected.get(), record.seconds, record.failures)

    def speculate(self, record: PrefixRecord | None = None) -> threading.Timer:
        """Have an idle core make the header of a prefix that no build has read so far, unless the timer is cancelled."""
        record = record or self._known()
        timer = threading.Timer(_SOON, self._make_aside, (record,))
        timer.daemon = True
        if record.seconds == UNKNOWN and not record.failures:
            with suppress(RuntimeError):  # no more threads, or the interpreter is ending
                timer.start()
        return timer

    def _make_aside(self, record: PrefixRecord) -> None:
        cancellation = pool.Cancellation()
        with _lock:
            running = sum(thread.is_alive() for thread, _ in _unused.values())
            if self.key in _unused or len(_unused) >= _MOST_UNUSED or running >= pool.idle():
                return
            if not _unused:
                at_end(_end)
            _unused[self.key] = threading.current_thread(), cancellation
        pool.Cancellation.current.set(cancellation)
        # No build depends on it, and the program may end.
        with suppress(Exception, pool.Cancelled):
            self._make(record, self.MAX_SECONDS, aside=True)

    def _make(self, record: PrefixRecord, timeout: float, *, aside: bool = False) -> None:
        """Make the header, unless another build does; after a failure, the next must be worth twice as much."""
        temporary = f"{self._cache_dir}/pch/.{self.key}.pch-{os.getpid()}{'-aside' * aside}"
        with ExitStack() as stack:
            with _lock:
                # No header is made without the lock: either another process is making it, or this file system has
                # no locks, and two builds could write to one file.
                if self.key in _making or not self._is_locked(stack):
                    return
                stack.callback(_ahead.pop, self.key, None)
                stack.callback(_making.pop, self.key, None)
                stack.callback(sealed.discard, temporary)  # If all went well, it was renamed.
                _making[self.key] = time.monotonic()
            now = self._known()
            # Another process may have made it, or have failed to, just now.
            if now.image or now.failures > record.failures or self._free_bytes() < _LEAST_BYTES:
                return
            outcome, seconds = self.make(temporary, timeout, aside)
            now = self._known()
            if isinstance(outcome, Compiled):
                now = now._replace(seconds=min(seconds, now.seconds))
                if _saved(seconds) >= _LEAST_SAVED and self._publish(now, outcome, temporary):
                    return
            now._replace(failures=now.failures + 1).write(self._cache_dir, self.key)

    def _is_locked(self, stack: ExitStack) -> bool:
        """Return whether the record and the header are locked until the stack is closed."""
        path = f"{self._cache_dir}/locks/pch-{self.key[:3]}"
        return has_private_folder(self._cache_dir) and stack.enter_context(
            locks.machine_wide(path, 0.0)
        )

    def _free_bytes(self) -> int:
        limit = Settings.from_environ().cache_size
        return inventory.room_for_precompiled(Folder(self._cache_dir), limit)

    def built(self, outcome: Compiled | CompileFailure, seconds: float) -> None:
        """Record a build that ran without the header."""
        files = outcome.files or FileSet()
        # Below this saving, a precompiled header never pays off.
        if not files.headers or _saved(seconds) < _LEAST_SAVED:
            return
        with _lock, ExitStack() as stack:
            # An idle core may be making the header for this process, which then has the lock.
            if self.key not in _making and not self._is_locked(stack):
                return
            known = self._known()
            if known.image:
                return
            if known.dependencies.current() is None:
                known = PrefixRecord(failures=known.failures)
            builds, shortest = known.builds + 1, min(seconds, known.seconds)
            known = known._replace(dependencies=files, builds=builds, seconds=shortest)
            known.write(self._cache_dir, self.key)

    def _publish(self, record: PrefixRecord, outcome: Compiled, temporary: str) -> bool:
        """Let builds use the header that was made at `temporary`; False if it cannot be used."""
        dependencies = outcome.files
        try:
            size = os.stat(temporary).st_size
        except OSError:  # NVRTC made no header
            return False
        if (
            dependencies is None
            or dependencies.uncacheable
            or dependencies.newest_ns >= self._began_ns  # it was edited while it was read
            or not _LEAST_BYTES <= size <= self._free_bytes()
        ):
            return False
        cache = Folder(self._cache_dir)
        inventory.sweep(cache)
        os.rename(temporary, self.path)
        record = record._replace(image=image(self.path), dependencies=dependencies)
        if not record.write(self._cache_dir, self.key):
            sealed.discard(self.path)
            return False
        inventory.evict(cache, Settings.from_environ().cache_size)
        return True

    def blame(self) -> None:
        """Remove a header with which a compiler failed; the next attempt must be worth twice as much."""
        record = self._known()
        if record.image:  # otherwise another build has just removed it
            self._drop()
            PrefixRecord(failures=record.failures + 1).write(self._cache_dir, self.key)

    def _drop(self) -> None:
        _found.pop(self.key, None)
        sealed.discard(self.path)
        sealed.discard(self._record)

    def _wait(self) -> None:
        """Wait for the header that another build of this process makes, while that saves time."""
        if self.key not in _making:
            return
        slots, uses = pool.slots(), 0.5
        with _lock:
            # Some builds of a batch with more builds than slots go ahead.
            if expected.get() > slots and _ahead[self.key] >= max(1, slots - 1):
                uses = expected.get() / slots
            _ahead[self.key] += 1
        seconds = UNKNOWN
        cancellation = pool.Cancellation.current.get()
        began = time.monotonic()
        while begun := _making.get(self.key):
            if seconds == UNKNOWN:
                seconds = self._known().seconds
            now = time.monotonic()
            is_first = seconds == UNKNOWN and uses > 1  # none of its batch has ended yet
            pays = is_first or is_worth_waiting(uses, seconds, now - begun, now - began)
            if not pays or now - began > self.MAX_SECONDS:
                return
            if cancellation is not None:
                cancellation.check()
            time.sleep(_POLL_SECONDS)


def _end() -> None:
    """Cancel the headers that idle cores are making, so no files are left behind."""
    for thread, cancellation in [*_unused.values()]:
        cancellation.cancel()
        thread.join(_SECONDS_TO_END)


_SECONDS_TO_END = 1.0


@forks.in_child
def _forget_after_fork() -> None:
    # A forked child cannot wait for a header that its parent is making.
    for table in (_found, _making, _ahead, _unused):
        table.clear()
