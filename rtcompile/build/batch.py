"""A batch of builds: one thread finds what is cached, and several threads compile the rest."""

from __future__ import annotations

import contextvars
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field

from rtcompile.build import pipeline, planned
from rtcompile.errors import RtcompileError, public, unchained
from rtcompile.lookup.find import Query
from rtcompile.named import computed_once
from rtcompile.request import cxx
from rtcompile.request.object_code import ObjectCode
from rtcompile.workers import pool

# For each running build one more is prepared and waits for a slot, so no slot is idle while results are stored.
_THREADS_PER_SLOT = 2
_THREADS_BESIDE = 2


class BuildFuture(Future[ObjectCode]):
    """A running build. ``asyncio.wrap_future`` makes it awaitable."""

    def __init__(self, *, yields: bool = False) -> None:
        super().__init__()
        self._cancellation = pool.Cancellation(yields=yields)
        # Called by the first `result`: raises or warns if the code lacks what it was built for.
        self.check: Callable[[ObjectCode], object] | None = None

    def result(self, timeout: float | None = None) -> ObjectCode:
        """Return the code, or raise the build's error; wait for it first."""
        code = super().result(timeout)
        if self.check is not None:
            self.check(code)
            self.check = None
        return code

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error that `result` raises; None if there is none."""
        error = super().exception(timeout)
        if error is None:
            try:
                self.result()
            except RtcompileError as lacking:
                return lacking
        return error

    def cancel(self) -> bool:
        """Cancel the build, killing its compiler. False if it is already done."""
        # Builds are never marked as running, so Future can cancel them at any time.
        if self.cancelled():
            return True
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()  # wakes up as_completed()
        self._cancellation.cancel()
        return True


@dataclass(eq=False)
class Build:
    """One build of a batch."""

    query: Query
    future: BuildFuture = field(default_factory=BuildFuture)
    was_looked_for: bool = False
    was_put_off: bool = False  # since another process or node was building it

    @computed_once
    def group(self) -> tuple[object, ...]:
        """The common key of builds that can share a precompiled header."""
        request = self.query.request
        prefix = cxx.split_prefix(request.source)[0]
        return prefix, request.options, request.arch, request.target, self.query.settings.pch

    def running(self) -> AbstractContextManager[None]:
        """Set up the context that this thread needs for the build."""
        return nullcontext()

    def run(self, step: Callable[[Build], ObjectCode | None]) -> bool:
        """Run a step in this thread; return whether another one has to follow."""
        future = self.future
        if future.cancelled():
            return False
        # Each failure must end up in the future, or its reader waits forever. InvalidStateError: cancelled.
        with self.running(), suppress(InvalidStateError, pool.Cancelled):
            token = pool.Cancellation.current.set(future._cancellation)
            try:
                found = public(step)(self)
                if found is None:
                    return True
                future.set_result(found)
            except RtcompileError as error:
                future.set_exception(unchained(error))
            except Exception as error:  # noqa: BLE001  # the future keeps whatever was raised
                future.set_exception(error)
            finally:
                pool.Cancellation.current.reset(token)
        return False


class Batch:
    """Running builds. Each thread takes the next build that needs a compiler, and compiles it.

    Only one thread at a time looks builds up: sixteen would spend most of the time waiting for the GIL. There are
    at most as many threads as builds that need a compiler.
    """

    def __init__(self, builds: Sequence[Build]) -> None:
        self._is_shared = any(build.query.settings.remote for build in builds)
        # Nodes and ranks with the same batch begin at different builds.
        first = secrets.randbelow(len(builds)) if self._is_shared else 0
        self._left = deque([*builds[first:], *builds[:first]])
        self._put_off: deque[Build] = deque()
        self._groups = Counter(build.group for build in builds)
        self._looking = threading.Lock()

    def start(self) -> None:
        """Start the builds; if no thread can be started, run them in this thread."""
        # One build is looked up here, since a hit takes less time than the start of threads.
        if len(self._left) == 1 and not self._is_shared and (build := self._next()):
            self._left.append(build)
        if self._left and not start_threads(1, self._begin):
            contextvars.copy_context().run(self._begin)

    def _begin(self) -> None:
        """Run all builds; from the first one that needs a compiler on, other threads help."""
        build = self._next()
        if build is not None:
            most = _THREADS_PER_SLOT * pool.slots() + _THREADS_BESIDE
            # A build that waits for its slot holds a lease, which prevents other nodes from building the kernel.
            threads = pool.slots() + 1 if self._is_shared else most
            start_threads(min(len(self._left), threads - 1), self._help)
            self._do(build)
            self._help()

    def _help(self) -> None:
        while build := self._next():
            self._do(build)

    def _next(self) -> Build | None:
        """Return the next build that needs a compiler."""
        with self._looking:
            while self._left:
                build = self._left.popleft()
                # Planning may have to compile the sources in link=.
                if build.was_looked_for or build.query.request.link:
                    return build
                build.was_looked_for = True
                if build.run(self._look):
                    return build
            return self._put_off.popleft() if self._put_off else None

    def _do(self, build: Build) -> None:
        if build.run(self._compiled):
            build.was_put_off = True
            self._put_off.append(build)

    def _look(self, build: Build) -> ObjectCode | None:
        """Return the code; None if it has to be compiled."""
        build.query.begun = time.perf_counter()  # not when it was queued
        return pipeline.find(build.query)

    def _compiled(self, build: Build) -> ObjectCode | None:
        """Return the code; None, the first time, if another process or node is building the same code."""
        from rtcompile.compilers import pch  # its import takes 5 ms, which a batch of hits avoids
        from rtcompile.store.locks import Busy

        query = build.query
        pch.expected.set(self._groups[build.group])
        if not build.was_looked_for:
            return pipeline.build(query.request, query.settings)
        try:
            query.waits = build.was_put_off or query.quiet
            return planned.compile(query)
        except Busy:
            return None


def start_threads(count: int, work: Callable[[], None]) -> int:
    """Start threads that run `work` in copies of the caller's context; return how many the system allowed."""
    for index in range(count):
        run, name = contextvars.copy_context().run, f"build {index}"
        try:
            # Daemons, so an interrupted program does not wait for a compiler.
            threading.Thread(target=run, args=(work,), name=name, daemon=True).start()
        except RuntimeError:
            return index
    return count
