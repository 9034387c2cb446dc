"""A batch of builds: one thread finds what is cached, several threads compile the rest."""

from __future__ import annotations

import contextvars
import secrets
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

from rtcompile.build import pipeline, planned
from rtcompile.build.plan import Plan
from rtcompile.errors import RtcompileError, alone, public
from rtcompile.lookup.find import Query
from rtcompile.request import sources
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.settings import Settings
from rtcompile.workers import pool

# Beside each running build one more is prepared and waits for its slot, so no slot is empty
# while finished results are being stored.
_THREADS_PER_SLOT = 2
_THREADS_BESIDE = 2
# Counted against a limit on processes (`ulimit -u`): the thread, its zygote, its compiler, and one
# process that the compiler may start.
_PROCESSES_PER_THREAD = 4

_PLANNED_SECONDS = 1.0


class BuildFuture(Future[ObjectCode]):
    """A build under way. ``asyncio.wrap_future`` makes it awaitable."""

    def __init__(self, *, gives_way: bool = False) -> None:
        super().__init__()
        self._cancellation = pool.Cancellation(gives_way=gives_way)

    def cancel(self) -> bool:
        """Cancel the build, also while a compiler runs, which is killed. False if it is done."""
        # No build is ever marked as running, so Future cancels it at any time.
        if self.cancelled():
            return True
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()  # wakes up as_completed()
        self._cancellation.cancel()
        return True

    def _run(self, step: Callable[[], ObjectCode | None]) -> bool:
        """Do a step of the build in this thread; return whether another has to follow."""
        if self.cancelled():
            return False
        token = pool.Cancellation.current.set(self._cancellation)
        # InvalidStateError: it was cancelled meanwhile.
        with suppress(InvalidStateError, pool.Cancelled):
            try:
                found = public(step)()
                if found is None:
                    return True
                self.set_result(found)
            except RtcompileError as error:
                self.set_exception(alone(error))
            except Exception as error:  # noqa: BLE001  # the future keeps whatever was raised
                self.set_exception(error)
            finally:
                pool.Cancellation.current.reset(token)
        return False


# Every field of a request that its plan depends on, besides the key's own part of it.
_decisive = attrgetter(
    *(f for f in CompileRequest._fields if f not in ("source", "name", "name_expressions"))
)


class Planner:
    """Plans the builds of a batch, once for all that differ only in source, name and name expressions.

    A plan is reused for a second, as long as the toolchain is not checked again either. `capability`
    is asked in place of the current device.
    """

    def __init__(self, capability: Callable[[], tuple[int, int]] | None = None) -> None:
        self._capability = capability
        self._known: dict[tuple[object, ...], tuple[float, Plan]] = {}

    def __call__(self, request: CompileRequest, settings: Settings) -> Plan:
        """Return the plan of a build; raises as `planned.plan`."""
        if request.link or request.headers:
            return planned.plan(request, settings, self._capability)
        common = (*_decisive(request), settings)
        since, known = self._known.get(common, (float("-inf"), None))
        now = time.monotonic()
        if known is not None and now - since < _PLANNED_SECONDS:
            key_inputs = replace(
                known.key_inputs,
                source=request.source,
                source_digest=request.source_digest,
                name=request.name,
                name_expressions=request.name_expressions,
            )
            return known._replace(request=request, key_inputs=key_inputs)
        made = planned.plan(request, settings, self._capability)
        nvrtc = made.toolchain.nvrtc
        # Not reused: line information names a source by its contents, and a compiler whose build is
        # not known yet reports it once.
        if not made.key_inputs.paths_matter and (nvrtc is None or nvrtc.build):
            self._known[common] = now, made
        return made


@dataclass(frozen=True)
class Task:
    """One build of a batch, with its architecture fixed."""

    query: Query
    overrides: Mapping[str, Any]

    @cached_property
    def group(self) -> tuple[object, ...]:
        """What builds that can share a precompiled header have in common."""
        request = self.query.request
        prefix = sources.split_prefix(request.source)[0]
        return prefix, request.options, request.arch, request.target, self.query.settings.pch

    def look(self) -> ObjectCode | None:
        """Return the code; None if it has to be compiled."""
        self.query.begun = time.perf_counter()  # it may have waited for other builds of the batch
        found = pipeline.find(self.query)
        return planned.search(self.query) if found is None else found

    def build(self) -> ObjectCode:
        """Return the code without a lookup before."""
        return pipeline.build(self.query.request, self.query.settings)


@dataclass
class Build:
    """A build of a batch that needs a compiler, or that was not looked up."""

    future: BuildFuture
    task: Task
    was_looked_for: bool = False
    was_put_off: bool = False  # since another process or node was building it


class Batch:
    """Builds under way. A thread takes the next build that needs a compiler, and compiles it.

    Only one thread at a time looks builds up: sixteen would spend most of the time on handing over
    the GIL. There are no more threads than builds that need a compiler.

    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = tasks
        self.futures = [BuildFuture() for _ in tasks]
        builds = [Build(*each) for each in zip(self.futures, tasks, strict=True)]
        self._is_shared = any(task.query.settings.remote for task in tasks)
        # Nodes and ranks that request the same builds begin at different ones.
        first = secrets.randbelow(len(tasks)) if self._is_shared else 0
        self._left = deque([*builds[first:], *builds[:first]])
        self._put_off: deque[Build] = deque()
        self._looking = threading.Lock()

    @cached_property
    def _groups(self) -> Counter[tuple[object, ...]]:
        return Counter(task.group for task in self.tasks)

    def start(self) -> None:
        """Start the builds; if no thread can be started, do them here."""
        if self.futures and not start_threads(1, self._begin):
            contextvars.copy_context().run(self._begin)

    def _begin(self) -> None:
        """Do all builds; from the first one that needs a compiler on, other threads help."""
        build = self._next()
        if build is not None:
            most = _THREADS_PER_SLOT * pool.slots() + _THREADS_BESIDE
            # One that waits for its slot holds a lease that keeps other nodes from the same kernel.
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
                if build.was_looked_for or build.task.query.request.link:
                    return build
                build.was_looked_for = True
                if build.future._run(partial(self._look, build)):
                    return build
            return self._put_off.popleft() if self._put_off else None

    def _look(self, build: Build) -> ObjectCode | None:
        return build.task.look()

    def _do(self, build: Build) -> None:
        # Whatever may fail is inside `_run`, which sets the future; otherwise its reader would wait forever.
        if build.future._run(partial(self._compiled, build)):
            build.was_put_off = True
            self._put_off.append(build)

    def _compiled(self, build: Build) -> ObjectCode | None:
        """Return the code; None, the first time, if another process or node builds the same."""
        from rtcompile.compilers import pch  # takes 5 ms, which a batch of hits does not need
        from rtcompile.store.locks import Busy

        pch.siblings.set(self._groups[build.task.group])
        if not build.was_looked_for:
            return build.task.build()
        try:
            return planned.compile(build.task.query, waits=build.was_put_off or not self.tasks)
        except Busy:
            return None


def start_threads(count: int, work: Callable[[], None]) -> int:
    """Start threads that do the work; return how many the system allowed.

    Threads count as processes (``ulimit -u``). Where no more can be started, most of the started
    ones end again, to leave processes for the compilers: threads without a compiler beside them
    would do nothing. Some more are started to see whether there is room for one, and end at once.
    """
    decided, alone = threading.Event(), threading.Event()
    at_work = 0

    def start(index: int) -> None:
        decided.wait()
        if index < at_work:
            alone.wait()
            work()

    threads: list[threading.Thread] = []
    try:
        for index in range(count + _PROCESSES_PER_THREAD - 1):
            # Each thread runs in a copy of the caller's context, which contains the trace in use. The
            # threads are daemons, so an interrupted program does not wait for a compiler.
            run = contextvars.copy_context().run
            arguments = (start, index)
            name = f"build {index}" if index < count else "spare"
            thread = threading.Thread(target=run, args=arguments, name=name, daemon=True)
            thread.start()
            threads.append(thread)
        at_work = count
    except RuntimeError:
        at_work = len(threads) // _PROCESSES_PER_THREAD
    finally:
        decided.set()
    try:
        for thread in threads[at_work:]:
            thread.join()  # it has nothing to do, and its process slot may be needed by a compiler
    finally:
        alone.set()
    return at_work
