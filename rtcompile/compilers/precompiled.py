"""Precompiled headers: an include prefix is parsed once, and later builds that open with it are spared that.

NVRTC uses whatever file it is given, stale or not, so all that decides is ours: a header's key has
the compiler, its heap's place, the options and the prefix; its record has the dependencies, by
content. It is made beside the second build that wants it, in a process of its own, so no build waits
for it; only of a batch with more builds than can run at once the rest waits. It is tried before it
is published; what fails with it is built again without.
"""

from __future__ import annotations

import contextvars
import functools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from rtcompile._version import __version__
from rtcompile.cache import files, headers, locks
from rtcompile.compilers import precompiled_files as disk
from rtcompile.compilers.precompiled_files import READY, REFUSED, SEEN, Record
from rtcompile.core import includes
from rtcompile.core.key import digest, field
from rtcompile.core.request import SearchDir
from rtcompile.core.units import Limits, TranslationUnit
from rtcompile.settings import Settings
from rtcompile.watching import tracing
from rtcompile.workers import heap, pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from rtcompile.core.includes import Dependencies
    from rtcompile.toolkit.model import Library

__all__ = ["MAKER", "Precompiled", "Prefix", "siblings"]

# Options that neither the front end sees nor NVRTC compares: one header serves all their values.
_FREE = ("--maxrregcount", "--ptxas-options", "--split-compile", "--frandom-seed")
MAKER = "rtcompile-pch"  # the name of the threads that wait for one to be made
_WORTH_SECONDS = 0.1
_TIMEOUT = 300.0
_FRESH_SECONDS = 0.5
_OTHERS_FAULT = (signal.SIGKILL, signal.SIGBUS)
_PATIENCE = 0.05  # seconds between two looks whether a build that waits was cancelled

# How many builds of a batch, this one included, open with the same prefix.
siblings: contextvars.ContextVar[int] = contextvars.ContextVar("rtcompile_siblings", default=1)


class Precompiled(NamedTuple):
    """A precompiled header that is there and current.

    `trace` lists the headers in it, `dependencies` says what they were when it was looked for.
    """

    path: str
    trace: tuple[str, ...]
    dependencies: Dependencies


class _Making:
    """A header on its way."""

    def __init__(self) -> None:
        self.cancellation = pool.Cancellation()
        self.done = threading.Event()


_guard = threading.Lock()
_wanted: Counter[str] = Counter()  # builds under way, by the key of their prefix
_ahead: Counter[str] = Counter()  # those of a batch that did not wait for the header
_making: dict[str, _Making] = {}
_no_heap: set[str] = set()  # libraries whose workers cannot place their heap

# One thread at a time looks whether a header is current, and those of its batch take its word:
# sixteen that each ask for 392 files at once take 150 ms, of which 145 go to passing on the GIL.
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
                # Another version may add other options of its own, which must match too.
                field("rtcompile", __version__),
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
        self._library = library.path
        self._make_job = make_job
        self._began = time.monotonic()

    @contextmanager
    def wanted(self) -> Iterator[None]:
        """Hold while a build that could use the header is under way.

        Two at once have it made. Who leaves as the last by a cancellation takes the making along.
        """
        with _guard:
            _wanted[self.key] += 1
            several = _wanted[self.key] > 1
        try:
            if several and self._state() in ("", SEEN):
                self._make_beside()
            self._wait_if_worth()
            yield
        except (pool.Cancelled, KeyboardInterrupt):
            with _guard:
                if _wanted[self.key] == 1 and self.key in _making:
                    _making[self.key].cancellation.cancel()
            raise
        finally:
            with _guard:
                _wanted[self.key] -= 1
                if not _wanted[self.key]:
                    del _wanted[self.key], _ahead[self.key]

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
        record = Record.read(self._record, self.search)
        if record is None:
            return None
        if record.state == SEEN and not disk.changed_since(record.trace, self._record):
            self._make_beside()
        if record.state != READY:
            return None
        now = headers.current(record.dependencies)
        if now is None or record.image != disk.image(self._path):
            self._drop()
            return None
        if now is not record.dependencies:  # touched or moved, with the same contents
            record._replace(dependencies=now).write(self._record, self.search)
        files.note_use(self._record)
        return Precompiled(self._path, record.trace, now)

    def built(self, trace: Sequence[str], seconds: float) -> None:
        """Note a build that had to do without: it was the first, and worth sparing the next one."""
        if seconds >= _WORTH_SECONDS and trace and self._state() in ("", SEEN):
            Record(SEEN, tuple(trace)).write(self._record, self.search)

    def blame(self, reason: str) -> None:
        """Remove a header with which a compiler failed; make another only if this one was damaged."""
        record = Record.read(self._record, self.search)
        if record is not None and record.state == REFUSED:
            return  # by another build, a moment ago
        damaged = (
            record is not None
            and record.checksum != b""
            and record.checksum != disk.checksum(self._path)
        )
        # One that was evicted, or dropped for an edit, between the look for it and its use.
        gone = not os.path.exists(self._path)
        self._drop("" if damaged or gone else reason)

    def _state(self) -> str:
        record = Record.read(self._record, self.search)
        return "" if record is None else record.state

    def _drop(self, reason: str = "") -> None:
        """Remove the header; with a reason never to make it again."""
        _found.pop(self.key, None)
        files.discard(self._path)
        files.discard(self._record)
        if reason:
            Record(REFUSED, reason=reason).write(self._record, self.search)

    def _wait_if_worth(self) -> None:
        """Of more builds than can run at once let some go ahead, a slot less; the rest waits.

        To parse the headers once and then not thirty times is sooner done than to parse them thirty
        times, with the making in the way. The first never waits.
        """
        slots = pool.slots()
        if siblings.get() <= slots or self._state() in (READY, REFUSED):
            return
        self._make_beside()
        with _guard:
            making = _making.get(self.key)
            if _ahead[self.key] < max(1, slots - 1):
                _ahead[self.key] += 1
                making = None
        cancellation = pool.Cancellation.current.get()
        while making is not None and not making.done.wait(_PATIENCE):
            if cancellation is not None:
                cancellation.check()

    def _make_beside(self) -> None:
        with _guard:
            if self.key in _making or self._library in _no_heap:
                return
            making = _making[self.key] = _Making()
        context = contextvars.copy_context()
        context.run(pool.Cancellation.current.set, making.cancellation)
        run = functools.partial(context.run, self._make, making)
        try:
            threading.Thread(target=run, name=MAKER, daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter is on its way out
            self._made(making)

    def _make(self, making: _Making) -> None:
        try:
            with suppress(pool.Cancelled):
                self.make(making.done.set)
        finally:
            self._made(making)

    def _made(self, making: _Making) -> None:
        with _guard:
            if _making.get(self.key) is making:
                del _making[self.key]
        making.done.set()

    def make(self, ready: Callable[[], object]) -> bool:
        """Make the header unless it is there, refused, or being made; say whether it is there.

        `ready` is called as soon as it can be used.
        """
        with locks.machine_wide(os.path.join(self.folder, self.key + ".lock"), 0.0) as held:
            state = self._state()
            if not held or state not in ("", SEEN):
                return state == READY
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
                # Killed by somebody who needed the memory, or writing to a full disk, or never run:
                # no fault of the prefix.
                innocent = outcome.kind == "start" or outcome.signal in _OTHERS_FAULT
                self._drop("" if innocent else f"making it ended in a {outcome.kind}")
                return False
            return self._publish(outcome.value, started_ns, ready)

    def _publish(self, made: dict[str, Any], started_ns: int, ready: Callable[[], object]) -> bool:
        if not made["heap"]:
            _no_heap.add(self._library)  # a matter of this process's limits, not of this prefix
            return False
        if made["problem"]:
            self._drop("" if made["full"] else made["problem"])
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
        record = Record(READY, trace, disk.image(self._path), b"", dependencies)
        if not record.write(self._record, self.search):
            self._drop()
            return False
        ready()
        # What nobody need wait for: half a second, for a file that is read once more.
        record._replace(checksum=disk.checksum(self._path)).write(self._record, self.search)
        disk.evict(self.folder, Settings.from_environ().cache_size // 2, keep=self.key)
        return True


def _forget_after_fork() -> None:
    # The makers are threads of the parent: here nobody would ever finish.
    global _guard, _looking
    _guard, _looking = threading.Lock(), threading.Lock()
    _found.clear()
    _wanted.clear()
    _ahead.clear()
    _making.clear()


os.register_at_fork(after_in_child=_forget_after_fork)
