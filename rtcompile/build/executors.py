"""Runs a batch on an executor: each build is one task, which gets the request.

An executor is any object with the ``submit`` of `concurrent.futures`: its own executors, mpi4py's, a Dask client's,
`rtcompile.cluster.ray.RayExecutor`. A task compiles with the settings and cache of the machine where it runs; the
machine that submitted it also caches the result.
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
    """One build of a batch, as it is sent."""

    request: CompileRequest
    # Arguments that take precedence over the settings of the building machine.
    overrides: Mapping[str, Any]
    siblings: int  # builds of the batch that can share a precompiled header with this one


# The reply: the result, and the same packed for the cache of the machine that submitted it.
_Answer = tuple[ObjectCode | RtcompileError, Page | None]


class RemoteFuture(Future[ObjectCode]):
    """A build in another process."""

    def __init__(self, job: Job, theirs: Future[_Answer]) -> None:
        super().__init__()
        self._job = job
        self._theirs = theirs
        theirs.add_done_callback(self._take)

    def cancel(self) -> bool:
        """Cancel the build; if it is already running elsewhere, it may continue there."""
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
                with suppress(RtcompileError):  # there may be no toolkit here
                    _keep(self._job, packed)
            self.set_result(outcome)


def executor_of(given: Any) -> Any:
    """Return an object whose ``submit(function, *arguments)`` returns `concurrent.futures` futures."""
    adapter = getattr(
        given, "get_executor", None
    )  # a Dask client, whose own futures are of another type
    if callable(adapter):
        return adapter(pure=False)
    if callable(getattr(given, "submit", None)):
        return given
    raise InvalidRequest(
        "executor must have submit(), as a concurrent.futures.Executor has (mpi4py's and "
        f"rtcompile.cluster.ray.RayExecutor too), or be a Dask Client, not {shown(given)}"
    )


def submit(executor: Any, job: Job) -> RemoteFuture:
    """Start a build on an executor."""
    try:
        theirs = executor.submit(_work, job)
    except Exception as error:  # noqa: BLE001  # an engine that was shut down may raise anything
        theirs = Future()
        theirs.set_exception(error)
    return RemoteFuture(job, theirs)


def _work(job: Job) -> _Answer:
    """Build here; an executor's worker runs this function."""
    try:
        settings = Settings.from_environ().override(**job.overrides)
        token = pch.expected.set(job.siblings)
        try:
            code = pipeline.build(job.request, settings)
        finally:
            pch.expected.reset(token)
        inputs = planned.plan(job.request, settings).key_inputs
        return code, sharing.pack(inputs, Store.open(settings), code)
    except RtcompileError as error:
        return alone(error), None


def _keep(job: Job, packed: Page) -> None:
    """Write a result to this machine's cache."""
    settings = Settings.from_environ().override(**job.overrides)
    store = Store.open(settings)
    plan = planned.plan(job.request, settings)
    if settings.jit and store.find(plan.key_inputs) is None:
        sharing.unpack(miss.identified(plan, settings).key_inputs, store, packed)


def _lost(error: BaseException) -> ExecutorError:
    lines = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
    return ExecutorError(
        f"the executor could not run this build: {what}. Its workers need rtcompile of the same "
        "version, and memory for a compiler (0.4 GB for CuTe)"
    )
