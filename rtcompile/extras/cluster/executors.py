"""Builds of a batch on an executor: each is one task, which compiles with the settings and cache of its machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any

from rtcompile import CompileRequest, ExecutorError, InvalidRequest, ObjectCode, RtcompileError
from rtcompile.build import elsewhere
from rtcompile.build.batch import BuildFuture
from rtcompile.build.elsewhere import Settings
from rtcompile.errors import shown, unchained
from rtcompile.extras.cluster import pages
from rtcompile.extras.cluster.pages import Page
from rtcompile.named import NamedTuple
from rtcompile.store.shared import Store


class SentBuild(NamedTuple):
    """One build of a batch, as it is sent."""

    request: CompileRequest
    # Arguments that take precedence over the settings of the building machine.
    overrides: Mapping[str, Any]
    siblings: int  # builds of the batch that can share a precompiled header with this one


# The reply: the result, and the same packed for the cache of the machine that submitted it.
_Reply = tuple[ObjectCode | RtcompileError, Page | None]


class RemoteFuture(BuildFuture):
    """A build in another process; if it is already running when it is cancelled, it may continue there."""

    def __init__(self, build: SentBuild, theirs: Future[_Reply]) -> None:
        super().__init__()
        self._build = build
        self._theirs = theirs
        theirs.add_done_callback(self._take)

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
                    _keep(self._build, packed)
            self.set_result(outcome)


Submit = Callable[[CompileRequest, Mapping[str, Any], int], BuildFuture]


def submit_to(executor: Any) -> Submit:
    """Return a function that starts a build, with the fields of a `SentBuild`, on an executor."""
    # A Dask client has an adapter, since its own futures are of another type.
    adapter = getattr(executor, "get_executor", None)
    if callable(adapter):
        executor = adapter(pure=False)
    if not callable(getattr(executor, "submit", None)):
        raise InvalidRequest(
            "executor must have submit(), as a concurrent.futures.Executor has (mpi4py's and "
            f"rtcompile.cluster.ray.RayExecutor too), or be a Dask Client, not {shown(executor)}"
        )
    return partial(_submit, executor.submit)


def _submit(
    submit: Callable[..., Future[_Reply]],
    request: CompileRequest,
    overrides: Mapping[str, Any],
    siblings: int,
) -> BuildFuture:
    build = SentBuild(request, overrides, siblings)
    try:
        theirs = submit(_work, build)
    except Exception as error:  # noqa: BLE001  # an engine that was shut down may raise anything
        theirs = Future()
        theirs.set_exception(error)
    return RemoteFuture(build, theirs)


def _work(build: SentBuild) -> _Reply:
    """Build here; an executor's worker runs this function."""
    try:
        settings = Settings.from_environ().override(**build.overrides)
        code = elsewhere.build(build.request, settings, build.siblings)
        inputs = elsewhere.key_inputs(build.request, settings)
        return code, pages.pack(inputs, Store.open(settings), code)
    except RtcompileError as error:
        return unchained(error), None


def _keep(build: SentBuild, packed: Page) -> None:
    """Write a result to this machine's cache."""
    settings = Settings.from_environ().override(**build.overrides)
    store = Store.open(settings)
    inputs = elsewhere.key_inputs(build.request, settings)
    if settings.jit and store.find(inputs) is None:
        pages.unpack(inputs, store, packed)


def _lost(error: BaseException) -> ExecutorError:
    lines = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
    return ExecutorError(
        f"the executor could not run this build: {what}. Its workers need rtcompile of the same "
        "version, and memory for a compiler (0.4 GB for CuTe)"
    )
