"""Compiles kernels in the background, between their construction and their first use, if the cache lacks them.

The builds are a growing `Batch`, in the order of construction. Its jobs yield to jobs that a caller waits for. At
its first use, a kernel takes the result or waits for it, and only then do errors and warnings appear. Builds of
kernels that the program no longer references are cancelled, and the time spent on unused builds is limited.
"""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rtcompile import errors, forks, toolkit
from rtcompile.build import batch, pipeline, planned
from rtcompile.build.batch import Batch, Build, BuildFuture
from rtcompile.errors import CompileError, LinkError
from rtcompile.errors import own as thread
from rtcompile.lookup import driver
from rtcompile.lookup import find as lookup
from rtcompile.lookup.find import Query, query_of
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.settings import Settings
from rtcompile.store.folder import at_end
from rtcompile.store.store import Store
from rtcompile.workers import pool

# Seconds of compiling allowed for code that is not used yet.
_MOST_SECONDS = 60.0
_FEW = 128  # builds; a program that constructs more probably does not use all of them
_SECONDS_OF_MANY = 1.5  # allowed for such a program
_USED_OF_MANY = 8  # once so many builds are used, `_SECONDS_OF_MANY` are allowed for each of them


@dataclass(eq=False, kw_only=True)
class _Constructed(Build):
    """A build of a constructed kernel, which the program references as long as `owner` returns it."""

    owner: Callable[[], object | None]
    directory: str | None  # the working directory, when it was queued
    began: float = 0.0  # when it began to run; 0 while it does not run
    seconds: float = 0.0  # how long it ran before that
    warnings: list[str] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Collect warnings, and use the recorded working directory and variables, while this thread works on it."""
        before = getattr(thread, "warnings", None)
        thread.warnings, thread.directory = self.warnings, self.directory
        thread.environ = self.query.environment.variables
        self.began = time.monotonic()
        try:
            yield
        finally:
            self.seconds, self.began = self.spent(), 0.0
            thread.warnings, thread.directory, thread.environ = before, None, None

    def spent(self) -> float:
        """Return its seconds so far."""
        began = self.began
        return self.seconds + (time.monotonic() - began if began else 0.0)


class Ahead(Batch):
    """A process's builds ahead of use."""

    def __init__(self) -> None:
        super().__init__([])
        self._guard = threading.RLock()
        self.kept: dict[object, _Constructed] = {}  # by identity, until they are used
        self.threads = self.constructed = self._used = self._taken = 0
        self._lost = 0.0  # seconds of builds that were given up
        self._has_ended = False

    def add(
        self,
        owner: Callable[[], object | None],
        query: Query,
        expected: Callable[[], object | None],
    ) -> None:
        """Queue a build that no level has, if it is still `expected`."""
        query.quiet = True
        future = BuildFuture(yields=True)
        build = _Constructed(query, future, owner=owner, directory=thread.directory)
        with self._guard:
            if self._has_ended or query.identity in self.kept or expected() is None:
                return
            self.kept[query.identity] = build
            self.constructed += 1
            self._groups[build.group] += 1
            self._left.append(build)
        self._start_threads()

    def tend(self) -> bool:
        """Cancel unreferenced builds and enforce the limit; return whether any thread is still building."""
        with self._guard:
            for identity, build in [*self.kept.items()]:
                if build.owner() is None:
                    self._give_up(identity)
            if self._spent() > self._allowed():
                for build in self.kept.values():
                    if build.began:
                        build.future._cancellation.cancel()  # `_do` queues it again
        self._start_threads()
        return self.threads > 0

    def take(self, query: Query, *, waits: bool) -> ObjectCode | None:
        """Return the code of a request that was built ahead; None if the caller has to look it up or build it.

        With `waits`, wait for a running build; the caller does a build that has not started.
        """
        with self._guard:
            build = None if query.quiet else self.kept.get(query.identity)
            if build is None or not (waits or build.future.done()):
                return None
            self._used += 1
            if not (build.began or build.future.done()) or query.settings != build.query.settings:
                self._give_up(query.identity)
                return None
            build.future._cancellation.yields = False
            del self.kept[query.identity]
            self._taken += not waits
        try:
            while not build.future.done():
                concurrent.futures.wait([build.future], pool.MAX_WAIT_SECONDS)
        except BaseException:  # Ctrl-C: the program may request it again
            self.kept[query.identity] = build
            raise
        self._start_threads()
        return _outcome(build, query)

    def leave(self, query: Query) -> None:
        """Drop a build that is made elsewhere, unless it is done."""
        with self._guard:
            build = self.kept.get(query.identity)
            if build is not None and not build.future.done():
                self._give_up(query.identity)

    def counts(self) -> tuple[int, int]:
        """Return how many builds are done, except those that were waited for, and how many are left."""
        with self._guard:
            done = sum(build.future.done() for build in self.kept.values())
            return done + self._taken, len(self.kept) - done

    def end(self) -> None:
        """Cancel all builds, at the end of the process."""
        with self._guard:
            self._has_ended = True
            for identity in [*self.kept]:
                self._give_up(identity)

    def _give_up(self, identity: object) -> None:
        build = self.kept.pop(identity)
        self._lost += build.spent()
        build.future.cancel()

    def _spent(self) -> float:
        """Return the seconds of compiling that nobody has used."""
        return self._lost + sum(build.spent() for build in self.kept.values())

    def _allowed(self) -> float:
        """Return how many seconds of compiling may be unused."""
        if self.constructed <= _FEW:
            return _MOST_SECONDS
        return _SECONDS_OF_MANY * (self._used if self._used >= _USED_OF_MANY else 1)

    # --- the batch -------------------------------------------------------------------------------

    def _start_threads(self) -> None:
        """Start threads for the remaining builds: as many as there are slots for yielding jobs."""
        with self._guard:
            missing = min(len(self._left), max(1, pool.slots() - 1) - self.threads)
            if missing <= 0 or self._has_ended or self._spent() > self._allowed():
                return
            self.threads += missing
        started = batch.start_threads(missing, self._work)
        with self._guard:
            self.threads -= missing - started
            self._has_ended = self._has_ended or not (started or self.threads)

    def _work(self) -> None:
        thread.warnings = errors.unshown
        try:
            self._help()
        finally:
            with self._guard:
                self.threads -= 1

    def _next(self) -> Build | None:
        with self._guard:
            goes_on = self._spent() <= self._allowed()
        # A build that a caller waits for, and that lost its slot to another job, comes first.
        if goes_on or any(not b.future._cancellation.yields for b in list(self._left)):
            return super()._next()
        return None

    def _do(self, build: Build) -> None:
        super()._do(build)
        if not build.future.done():  # another job has its slot, or too many builds are unused
            yields = build.future._cancellation.yields
            build.future._cancellation = pool.Cancellation(yields=yields)
            with self._looking:
                self._left.appendleft(build)


def _outcome(build: _Constructed, query: Query) -> ObjectCode | None:
    """Return the code or raise the error of a build; None if it is outdated."""
    future = build.future
    if future.cancelled():
        return None
    error = future.exception()
    if isinstance(error, CompileError) and type(error) in (CompileError, LinkError):
        # A failure that depends on files is in the cache while these are unchanged.
        key_inputs = planned.plan_of(query).key_inputs
        if Store.open(query.settings).failure(key_inputs) is None:
            return None
    elif error is not None or pipeline.search(query, "nothing", keeps=False) is None:
        return None  # The next attempt may succeed, since something has changed.
    for text in build.warnings:
        errors.warn(text)
    lookup.report(query.request, error or future.result(), query.settings.log)
    return future.result()


def add(
    owner: Callable[[], object | None],
    request: CompileRequest,
    settings: Settings,
    expected: Callable[[], object | None],
) -> None:
    """Queue the build of a constructed kernel, unless a level has it for these devices.

    `expected` returns None once another caller has started the build.
    """
    if request.link:
        return  # planning may have to compile linker inputs
    capability = None
    if request.arch is None:
        capability = driver.capability_of_all()
        if capability is None:
            return
        pipeline.start_compiler(settings)
        toolkit.remember_device(capability)
    try:
        thread.directory = os.getcwd()
        query = query_of(request, settings, capability)
        if query.identity is None or pipeline.is_found(query):
            return
        if lookup.builds_ahead is None:
            lookup.builds_ahead = Ahead()
            at_end(_end)
        lookup.builds_ahead.add(owner, query, expected)
    finally:
        thread.directory = None


def _end() -> None:
    # A forked child has no queue. The parent's queue continues to use the shared sockets.
    if lookup.builds_ahead is not None:
        lookup.builds_ahead.end()


@forks.in_child
def _forget_after_fork() -> None:
    # The threads belong to the parent, which compiles its own kernels.
    lookup.builds_ahead = None
