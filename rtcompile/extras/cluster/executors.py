"""Builds of a batch on an executor: each is one task, which compiles with the settings and cache of its machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any

from rtcompile import CompileRequest, ExecutorError, InvalidRequest, ObjectCode, RtcompileError
from rtcompile.build.batch import BuildFuture
from rtcompile.build.pipeline import build
from rtcompile.build.planned import plan
from rtcompile.errors import shown, unchained
from rtcompile.extras.cluster import pages
from rtcompile.extras.cluster.pages import Page
from rtcompile.settings import Settings
from rtcompile.store.store import Store

# The reply: the result, and the same packed for the cache of the machine that submitted it.
_Reply = tuple[ObjectCode | RtcompileError, Page | None]


class RemoteFuture(BuildFuture):
    """A build in another process; if it is already running when it is cancelled, it may continue there.

    `overrides` take precedence over the settings of the building machine.
    """

    def __init__(
        self,
        submit: Callable[..., Future[_Reply]],
        request: CompileRequest,
        overrides: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self._build = request, overrides
        try:
            self._theirs = submit(_work, request, overrides)
        except Exception as error:  # noqa: BLE001  # an engine that was shut down may raise anything
            self._theirs = Future()
            self._theirs.set_exception(error)
        self._theirs.add_done_callback(self._take)

    def _stop(self) -> None:
        self._theirs.cancel()

    def _take(self, theirs: Future[_Reply]) -> None:
        with suppress(InvalidStateError):  # it was cancelled meanwhile
            try:
                outcome, packed = theirs.result()
            except BaseException as error:  # noqa: BLE001  # an engine and its worker's Python may raise anything
                self.set_exception(_lost(error))
                return
            if isinstance(outcome, RtcompileError):
                self.set_exception(unchained(outcome))
                return
            if packed is not None:
                with suppress(RtcompileError):  # there may be no toolkit here
                    _keep(*self._build, packed)
            self.set_result(outcome)


def submit_to(executor: Any) -> Callable[[CompileRequest, Mapping[str, Any]], BuildFuture]:
    """Return a function that starts a build on an executor, with the arguments of `RemoteFuture`."""
    # A Dask client has an adapter, since its own futures are of another type.
    adapter = getattr(executor, "get_executor", None)
    if callable(adapter):
        executor = adapter(pure=False)
    if not callable(getattr(executor, "submit", None)):
        raise InvalidRequest(
            "executor must have submit(), as a concurrent.futures.Executor has (mpi4py's too), or "
            f"be a Dask Client, not {shown(executor)}"
        )
    return partial(RemoteFuture, executor.submit)


def _work(request: CompileRequest, overrides: Mapping[str, Any]) -> _Reply:
    """Build here; an executor's worker runs this function."""
    try:
        settings = Settings.from_environ().override(**overrides)
        code = build(request, settings)
        inputs = plan(request, settings).key_inputs
        return code, pages.pack(inputs, Store.open(settings))
    except RtcompileError as error:
        return unchained(error), None


def _keep(request: CompileRequest, overrides: Mapping[str, Any], packed: Page) -> None:
    """Write a result to this machine's cache."""
    settings = Settings.from_environ().override(**overrides)
    store = Store.open(settings)
    inputs = plan(request, settings).key_inputs
    if settings.jit and store.find(inputs) is None:
        pages.unpack(inputs, store, packed)


def _lost(error: BaseException) -> ExecutorError:
    lines = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
    return ExecutorError(
        f"the executor could not run this build: {what}. Its workers need rtcompile of the same "
        "version, and memory for a compiler (0.4 GB for CuTe)"
    )
