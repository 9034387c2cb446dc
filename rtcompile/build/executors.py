"""A batch on an engine that exists: each build is a task of its own, by its request, never by a cubin.

An engine is anything with `concurrent.futures`' ``submit``: its own executors, mpi4py's, a Dask
client, `rtcompile.cluster.ray.RayExecutor`. A task compiles where it runs, with that machine's
settings and cache; its result is kept in the cache of the machine that submitted it, too.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, NamedTuple

from rtcompile.build import miss, pipeline, planned
from rtcompile.compilers import pch
from rtcompile.errors import ExecutorError, InvalidRequest, RtcompileError, alone, shown
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.settings import Settings
from rtcompile.store import sharing
from rtcompile.store.manifests import Page
from rtcompile.store.store import Store


class Job(NamedTuple):
    """One build of a batch, as it travels."""

    request: CompileRequest
    # Arguments that come before the settings of the machine that builds.
    overrides: Mapping[str, Any]
    siblings: int  # builds of the batch that can share a precompiled header with this one


# What comes back: the result, and it packed for the cache of the machine that submitted it.
_Answer = tuple[ObjectCode | RtcompileError, Page | None]


class RemoteFuture(Future[ObjectCode]):
    """A build that another process makes."""

    def __init__(self, job: Job, theirs: Future[_Answer]) -> None:
        super().__init__()
        self._job = job
        self._theirs = theirs
        theirs.add_done_callback(self._take)

    def cancel(self) -> bool:
        """Cancel the build; one that runs elsewhere already may run to its end there."""
        self._theirs.cancel()
        if not super().cancel():
            return self.cancelled()
        self.set_running_or_notify_cancel()  # wakes up as_completed()
        return True

    def _take(self, theirs: Future[_Answer]) -> None:
        with suppress(concurrent.futures.InvalidStateError):  # it was cancelled meanwhile
            try:
                outcome, packed = theirs.result()
            except BaseException as error:  # noqa: BLE001  # an engine and its worker's Python may raise anything
                self.set_exception(_lost(error))
                return
            if isinstance(outcome, RtcompileError):
                self.set_exception(alone(outcome))
                return
            if packed is not None:
                with suppress(RtcompileError):  # here may be no toolkit at all
                    _keep(self._job, packed)
            self.set_result(outcome)


def executor_of(given: Any) -> Any:
    """Return what has ``submit(function, *arguments)`` and gives `concurrent.futures` futures."""
    adapter = getattr(given, "get_executor", None)  # a Dask client, whose own futures are others
    if callable(adapter):
        return adapter(pure=False)
    if callable(getattr(given, "submit", None)):
        return given
    raise InvalidRequest(
        "executor must have submit(), as a concurrent.futures.Executor has (mpi4py's and "
        f"rtcompile.cluster.ray.RayExecutor too), or be a Dask Client, not {shown(given)}"
    )


def submit(executor: Any, job: Job) -> RemoteFuture:
    """Start a build on an engine."""
    try:
        theirs = executor.submit(_work, job)
    except Exception as error:  # noqa: BLE001  # an engine that was shut down may raise anything
        theirs = Future()
        theirs.set_exception(error)
    return RemoteFuture(job, theirs)


def _work(job: Job) -> _Answer:
    """Build here; this is what an engine's worker runs."""
    try:
        settings = Settings.from_environ().override(**job.overrides)
        token = pch.siblings.set(job.siblings)
        try:
            code = pipeline.build(job.request, settings)
        finally:
            pch.siblings.reset(token)
        inputs = planned.plan(job.request, settings).key_inputs
        return code, sharing.pack(inputs, Store.open(settings), code)
    except RtcompileError as error:
        return alone(error), None


def _keep(job: Job, packed: Page) -> None:
    """Write a result to the cache of this machine, where its own would be."""
    settings = Settings.from_environ().override(**job.overrides)
    store = Store.open(settings)
    plan = planned.plan(job.request, settings)
    if settings.jit and store.find(plan.key_inputs) is None:
        sharing.unpack(miss.identified(plan, settings).key_inputs, store, packed)


def _lost(error: BaseException) -> ExecutorError:
    said = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {said[-1]}" if said else type(error).__name__
    return ExecutorError(
        f"the executor could not run this build: {what}. Its workers need rtcompile of the same "
        "version, and memory for a compiler (0.4 GB for CuTe)"
    )
