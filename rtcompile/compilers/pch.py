"""Precompiled headers: the includes that open a source are parsed once, and later builds skip them.

NVRTC uses any file that it is given, even an outdated one, so rtcompile has to check it. The key of a
precompiled header has the compiler, the address of its heap, the options and the prefix. Its record
has the dependencies, by content. `worth_making` says when one is made. A process of its own makes it
(`pch_maker`), which starts after the build that wanted it and outlives the program. A build that
finds one in the making waits no longer than the header would save. In a batch with more builds than
slots, some builds go ahead and the others wait. A header is tried before it is published. A build
that fails with one is repeated without it.
"""

from __future__ import annotations

import contextvars
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

from rtcompile._version import __version__
from rtcompile.compilers import pch_maker as maker
from rtcompile.compilers.pch_maker import Record
from rtcompile.files import sealed
from rtcompile.files.headers import SearchDir
from rtcompile.request.key import digest, field
from rtcompile.request.units import TranslationUnit
from rtcompile.settings import Settings
from rtcompile.store import inventory, locks
from rtcompile.store.folder import Folder
from rtcompile.workers import heap, pool

if TYPE_CHECKING:
    from rtcompile.files.fileset import FileSet
    from rtcompile.toolkit.model import Library

# Options that the front end does not see and NVRTC does not compare. They are not in the key.
_FREE = ("--maxrregcount", "--ptxas-options", "--split-compile", "--frandom-seed")
MAKER = "rtcompile-pch"  # the name of the threads that wait while a header is made
_FRESH_SECONDS = 0.5
_POLL_SECONDS = 0.005  # seconds between two checks of a build that waits
_AT_ONCE = 0.1
_LONGEST_WAIT = 60.0  # for a header, before a build goes ahead without

# What a header costs and spares, in seconds (CuTe, CUB and CuPy's headers, on a machine of 2026).
_SPARED_PART = 0.8  # of the front end's time: the rest is the user's own text
_USE = 0.015  # to check that it is current, and to map it
_START = 0.3  # of the maker's process
_LEAST_SPARED = 0.005
_LEAST_BYTES = 4 << 20  # of a header: the smallest seen has 8 MB

_KERNEL = re.compile(r"__global__\s+(?:void\s+|__launch_bounds__\s*\([^)]*\)\s*)*(\w+)")
_MOST_PROGRAMS = 16

# How many builds of a batch, this one included, open with the same prefix.
siblings: contextvars.ContextVar[int] = contextvars.ContextVar("rtcompile_siblings", default=1)


def worth_making(builds: int, front_end: float, makings: int = 0, repeats: int = 0) -> bool:
    """Return whether what a precompiled header saves exceeds the cost of making it, which reads the prefix twice."""
    # Of a program that was built again (`repeats`) as many builds are assumed to follow as there were, and the cost
    # counts half because nobody waits for it. Most projects build each kernel once: what is spent on headers
    # that are never used stays within an eighth of what the builds themselves took.
    spared = _spared(front_end)
    cost = (2 * front_end + _START) * (1 << min(makings, 64))
    return spared >= _LEAST_SPARED and (2 * repeats * spared >= cost or builds * spared >= 8 * cost)


def worth_waiting(builds: float, front_end: float) -> bool:
    """Return whether so many builds, one after another, are done sooner if they wait for the header."""
    return builds * _spared(front_end) > _START + front_end


def max_wait(front_end: float) -> float:
    """Return how many seconds a build waits for a header in the making: as long as that would save."""
    return max(0.0, _spared(front_end))


def _spared(front_end: float) -> float:
    return _SPARED_PART * front_end - _USE


class Precompiled(NamedTuple):
    """A current precompiled header, the headers in it, and their state when it was looked for."""

    path: str
    trace: tuple[str, ...]
    dependencies: FileSet


_guard = threading.Lock()
_wanted: Counter[str] = Counter()  # builds under way, by the key of their prefix
_ahead: Counter[str] = Counter()  # those of a batch that did not wait for the header
_read_in: dict[str, float] = {}  # the least seconds that one of them spent on reading its source
# When the makers were started that this process began and that still run, by key.
_making: dict[str, float] = {}
_UNKNOWN = float("inf")
_OVERDUE = 3  # a maker reads a prefix twice; after three times as long nobody waits for it
_MOST_ASSUMED = 3.0  # seconds that an unknown source takes to read: CuTe takes 1.4

# One thread at a time checks that a header is current, and the others of its batch use the result.
# Sixteen threads that check 392 files each take 150 ms, of which 145 are spent on handing over the GIL.
_looking = threading.Lock()
_found: dict[str, tuple[float, Precompiled]] = {}  # by key, with the time it was looked for


class Prefix:
    """The include prefix of one unit, under one compiler and one set of options."""

    def __init__(
        self,
        text: str,
        unit: TranslationUnit,
        library: Library,
        search: Sequence[SearchDir],
        cache_dir: str,
        job: pool.Job,
    ) -> None:
        self.text = text
        self.name = unit.name
        self.options = tuple(flag for flag in unit.flags if not flag.startswith(_FREE))
        self.search = search
        self.texts = unit.texts
        self.cache_dir = os.path.abspath(cache_dir)
        self.key = digest(
            [
                # Another version of rtcompile may add other options.
                field("rtcompile", __version__),
                field("nvrtc", library.identity()),
                field("heap", f"{heap.BASE:x}+{heap.SIZE:x}"),
                *(field("option", option) for option in self.options),
                # `#include "…"` looks beside the program first.
                field("directory", os.path.dirname(unit.name)),
                field("prefix", text),
            ]
        )
        # Whoever edits a kernel leaves its name as it is.
        names = _KERNEL.findall(unit.source) or unit.name_expressions
        self.program = bytes.fromhex(sealed.content_digest("\0".join(names).encode())[:32])
        self._path = f"{self.cache_dir}/pch/{self.key}.pch"
        self._record = f"{self.cache_dir}/pch/{self.key}.record"
        self._lock = f"{self.cache_dir}/pch/{self.key}.lock"
        self._job = job
        self._began = time.monotonic()

    @contextmanager
    def wanted(self) -> Iterator[None]:
        """Hold while a build that could use the header is under way."""
        with _guard:
            _wanted[self.key] += 1
        try:
            self._wait()
            yield
        finally:
            with _guard:
                _wanted[self.key] -= 1
                if not _wanted[self.key]:
                    del _wanted[self.key], _ahead[self.key]
                    _read_in.pop(self.key, None)

    def find(self) -> Precompiled | None:
        """Return the header if there is one and nothing in it has changed since this build began."""
        with _looking:
            looked, header = _found.get(self.key, (0.0, None))
            now = time.monotonic()
            if header is None or looked < max(self._began, now - _FRESH_SECONDS):
                header = self._look()
                if header is not None:
                    _found[self.key] = now, header
            return header

    def _look(self) -> Precompiled | None:
        record = Record.read(self._record)
        if record is None or not record.image or not maker.has_private_folder(self.cache_dir):
            return None
        now = record.dependencies.current()
        if now is None or record.image != maker.image(self._path):
            self._drop()
            return None
        if now is not record.dependencies:  # touched or moved
            record._replace(dependencies=now).write(self._record)
        sealed.note_use(self._record)
        return Precompiled(self._path, record.trace, now)

    def built(self, trace: Sequence[str], seconds: float) -> None:
        """Note a build that had to do without, and have the header made if it is worth it now."""
        with _guard:
            _read_in[self.key] = min(seconds, _read_in.get(self.key, seconds))
        # Else no number of builds makes it worth it.
        if trace and _spared(seconds) >= _LEAST_SPARED:
            self._count(tuple(trace), seconds)

    def _count(self, trace: tuple[str, ...], seconds: float | None) -> None:
        """Count a build in the record, or have the header made; without seconds in any case."""
        with _guard:
            if self.key in _making or not maker.has_private_folder(self.cache_dir):
                return
            # Without the lock the record is not touched: a header is in the making, or this file system
            # has no locks, and two makers would write to one file.
            lock = locks.take(self._lock, 0.0)
            if lock is None:
                return
            try:
                known = Record.read(self._record) or Record()
                if known.image:
                    return
                if maker.changed_since(known.trace, self._record):
                    known = Record(makings=known.makings)
                builds = known.builds + 1
                least = known.seconds if seconds is None else min(seconds, known.seconds)
                repeats = known.repeats + (self.program in known.programs)
                wanted = seconds is None or worth_making(builds, least, known.makings, repeats)
                record = Record(
                    trace or known.trace,
                    builds=builds,
                    makings=known.makings + wanted,
                    seconds=least,
                    repeats=repeats,
                    programs=(*known.programs, self.program)[-_MOST_PROGRAMS:],
                )
                if not record.write(self._record) or not wanted:
                    return
                if self._start_maker(lock, awaited=seconds is None):
                    locks.hand_over(lock)
                    lock = None
            finally:
                if lock is not None:
                    locks.release(self._lock, lock)

    def make_ahead(self) -> None:
        """Have the header made before a build needs it, unless there is a record of it."""
        if Record.read(self._record) is None:
            self._count((), None)

    def blame(self) -> None:
        """Remove a header with which a compiler failed; the next must be worth twice as much."""
        record = Record.read(self._record)
        if record is not None and record.image:  # else another build has just done so
            self._drop()
            Record(makings=record.makings).write(self._record)

    def _drop(self) -> None:
        _found.pop(self.key, None)
        sealed.discard(self._path)
        sealed.discard(self._record)

    def _wait(self) -> None:
        """Wait for a header in the making; in a batch with more builds than slots, have it made and wait."""
        slots = pool.slots()
        with _guard:
            # Some builds of such a batch go ahead.
            stays = siblings.get() > slots and _ahead[self.key] >= max(1, slots - 1)
            _ahead[self.key] += 1
        if not stays and self.key not in _making:
            return
        for record, seconds, waited in self._looks():
            is_known = seconds != _UNKNOWN
            if not stays:
                begun = _making.get(self.key)
                if begun is None:
                    return
                so_far = time.monotonic() - begun - _START
                expected = seconds if is_known else min(so_far, _MOST_ASSUMED)
                if waited >= max_wait(expected) or so_far > _OVERDUE * expected:
                    return
            elif waited > _LONGEST_WAIT or (
                is_known and not worth_waiting(siblings.get() / slots, seconds)
            ):
                return
            elif is_known or waited > _AT_ONCE:  # a source that is still being read takes long
                if not record.makings:
                    self._count((), None)
                with _guard:  # another thread may be about to start one
                    if self.key not in _making:
                        return  # an attempt failed, or another program makes it

    def _looks(self) -> Iterator[tuple[Record, float, float]]:
        """Yield the record, the least seconds of a build, and how long it was waited for, till it is made."""
        cancellation = pool.Cancellation.current.get()
        began = time.monotonic()
        while not (record := Record.read(self._record) or Record()).image:
            seconds = min(record.seconds, _read_in.get(self.key, record.seconds))
            yield record, seconds, time.monotonic() - began
            if cancellation is not None:
                cancellation.check()
            time.sleep(_POLL_SECONDS)

    def _start_maker(self, lock: int, *, awaited: bool) -> bool:
        limit = Settings.from_environ().cache_size
        if inventory.room_for_precompiled(Folder(self.cache_dir), limit) < _LEAST_BYTES:
            return False
        order = {
            "text": self.text,
            "name": self.name,
            "options": self.options,
            "texts": self.texts,
            "search": [(directory.label, directory.path) for directory in self.search],
            "path": self._path,
            "record": self._record,
            "lock": self._lock,
            "job": (self._job.function, self._job.prepare, self._job.argument),
            "limit": limit,
            "nice": maker.NICE_WHEN_AWAITED if awaited else maker.NICE,
        }
        try:
            pid = maker.start(order, lock)
        except OSError:  # no more processes
            return False
        _making[self.key] = time.monotonic()
        try:
            # The thread reaps the maker.
            threading.Thread(target=self._await, args=(pid,), name=MAKER, daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter is on its way out
            _making.pop(self.key, None)
        return True

    def _await(self, pid: int) -> None:
        # The application's os.wait() may have reaped it, or ignores SIGCHLD.
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        with _guard:
            _making.pop(self.key, None)


def _forget_after_fork() -> None:
    # The makers are the parent's children, whose end a forked child cannot wait for.
    global _guard, _looking
    _guard, _looking = threading.Lock(), threading.Lock()
    _found.clear()
    _wanted.clear()
    _ahead.clear()
    _read_in.clear()
    _making.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
