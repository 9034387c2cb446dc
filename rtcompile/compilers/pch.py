"""Precompiled headers: the includes that open a source are parsed once, and later builds skip them.

NVRTC does not notice an outdated precompiled header, so rtcompile has to check it. Its key covers the compiler, the
address of its heap, the options and the prefix. Its record has the dependencies, by content. `worth_making` decides
when one is made. A separate process (`pch_maker`) makes it, which starts after the build that needs it and outlives
the program. A build that finds one being made waits at most as long as the header would save. In a batch with more
builds than slots, some builds start without it and the others wait. A header is tested before it is published. A
build that fails with one is repeated without it.
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

# Options that do not affect the front end and that NVRTC does not compare. They are not in the key.
_FREE = ("--maxrregcount", "--ptxas-options", "--split-compile", "--frandom-seed")
MAKER = "rtcompile-pch"  # name of the threads that wait for a maker
_FRESH_SECONDS = 0.5
_POLL_SECONDS = 0.005  # seconds between two checks of a waiting build
_AT_ONCE = 0.1
_LONGEST_WAIT = 60.0  # for a header, before a build starts without it

# Costs and savings of a header, in seconds (CuTe, CUB and CuPy's headers, on a machine of 2026).
_SPARED_PART = 0.8  # of the front end's time: the rest is the user's own text
_USE = 0.015  # to check that it is current, and to map it
_START = 0.3  # of the maker's process
_LEAST_SPARED = 0.005
_LEAST_BYTES = 4 << 20  # of a header: the smallest seen has 8 MB

_KERNEL = re.compile(r"__global__\s+(?:void\s+|__launch_bounds__\s*\([^)]*\)\s*)*(\w+)")
_MOST_PROGRAMS = 16

# How many builds of a batch, including this one, have the same prefix.
siblings: contextvars.ContextVar[int] = contextvars.ContextVar("rtcompile_siblings", default=1)


def worth_making(builds: int, front_end: float, makings: int = 0, repeats: int = 0) -> bool:
    """Return whether a precompiled header saves more than it costs to make, which reads the prefix twice."""
    # If a program is built repeatedly (`repeats`), as many builds are expected as there were before, and the cost
    # counts half because nobody waits for it. Most projects build each kernel once: the time for unused headers is
    # limited to an eighth of the builds' time.
    spared = _spared(front_end)
    cost = (2 * front_end + _START) * (1 << min(makings, 64))
    return spared >= _LEAST_SPARED and (2 * repeats * spared >= cost or builds * spared >= 8 * cost)


def worth_waiting(builds: float, front_end: float) -> bool:
    """Return whether this many consecutive builds finish sooner if they wait for the header."""
    return builds * _spared(front_end) > _START + front_end


def max_wait(front_end: float) -> float:
    """Return how many seconds a build waits for a header that is being made: at most its saving."""
    return max(0.0, _spared(front_end))


def _spared(front_end: float) -> float:
    return _SPARED_PART * front_end - _USE


class Precompiled(NamedTuple):
    """An up-to-date precompiled header, its headers, and their state at the check."""

    path: str
    trace: tuple[str, ...]
    dependencies: FileSet


_guard = threading.Lock()
_wanted: Counter[str] = Counter()  # running builds, by the key of their prefix
_ahead: Counter[str] = Counter()  # builds of a batch that did not wait for the header
_read_in: dict[str, float] = {}  # the shortest time in which one of them read its source
# Start times of this process's running makers, by key.
_making: dict[str, float] = {}
_UNKNOWN = float("inf")
_OVERDUE = 3  # a maker reads a prefix twice; after three times that, nobody waits for it
_MOST_ASSUMED = 3.0  # assumed seconds for reading an unknown source: CuTe takes 1.4

# One thread at a time checks a header, and the other threads of its batch use the result. Sixteen threads that
# check 392 files each take 150 ms, 145 of them waiting for the GIL.
_looking = threading.Lock()
_found: dict[str, tuple[float, Precompiled]] = {}  # by key, with the time of the check


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
                # `#include "…"` searches the program's folder first.
                field("directory", os.path.dirname(unit.name)),
                field("prefix", text),
            ]
        )
        # The name identifies a program: edits rarely change a kernel's name.
        names = _KERNEL.findall(unit.source) or unit.name_expressions
        self.program = bytes.fromhex(sealed.content_digest("\0".join(names).encode())[:32])
        self._path = f"{self.cache_dir}/pch/{self.key}.pch"
        self._record = f"{self.cache_dir}/pch/{self.key}.record"
        self._lock = f"{self.cache_dir}/pch/{self.key}.lock"
        self._job = job
        self._began = time.monotonic()

    @contextmanager
    def wanted(self) -> Iterator[None]:
        """Count a build that could use the header for as long as it runs."""
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
        """Return the header if there is one and nothing in it has changed since this build started."""
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
        """Count a build without the header, and start making it if that is worth it now."""
        with _guard:
            _read_in[self.key] = min(seconds, _read_in.get(self.key, seconds))
        # Otherwise it is never worth it.
        if trace and _spared(seconds) >= _LEAST_SPARED:
            self._count(tuple(trace), seconds)

    def _count(self, trace: tuple[str, ...], seconds: float | None) -> None:
        """Count a build in the record, or start making the header; without `seconds`, always start."""
        with _guard:
            if self.key in _making or not maker.has_private_folder(self.cache_dir):
                return
            # Without the lock the record is not changed: a header is being made, or the file system has no locks,
            # and two makers would write to one file.
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
        """Start making the header before a build needs it, unless there is a record of it."""
        if Record.read(self._record) is None:
            self._count((), None)

    def blame(self) -> None:
        """Remove a header with which a compiler failed; the next must save twice as much."""
        record = Record.read(self._record)
        if record is not None and record.image:  # otherwise another build just did so
            self._drop()
            Record(makings=record.makings).write(self._record)

    def _drop(self) -> None:
        _found.pop(self.key, None)
        sealed.discard(self._path)
        sealed.discard(self._record)

    def _wait(self) -> None:
        """Wait for a header that is being made; in a batch with more builds than slots, start making it."""
        slots = pool.slots()
        with _guard:
            # Some builds of such a batch start without it.
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
            elif is_known or waited > _AT_ONCE:  # reading this source takes long
                if not record.makings:
                    self._count((), None)
                with _guard:  # another thread may be about to start one
                    if self.key not in _making:
                        return  # an attempt failed, or another program makes it

    def _looks(self) -> Iterator[tuple[Record, float, float]]:
        """Yield the record, the shortest time of a build, and the time waited so far, until the header is made."""
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
        except RuntimeError:  # no more threads, or the interpreter is exiting
            _making.pop(self.key, None)
        return True

    def _await(self, pid: int) -> None:
        # The application's os.wait() may have reaped it, or it ignores SIGCHLD.
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        with _guard:
            _making.pop(self.key, None)


def _forget_after_fork() -> None:
    # The makers are the parent's children, so a forked child cannot wait for them.
    global _guard, _looking
    _guard, _looking = threading.Lock(), threading.Lock()
    _found.clear()
    _wanted.clear()
    _ahead.clear()
    _read_in.clear()
    _making.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
