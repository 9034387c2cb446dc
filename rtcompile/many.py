"""Many builds at once: results in order, errors per item, and nothing left running when interrupted."""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError, as_completed
from contextlib import suppress
from typing import Any

from rtcompile import pipeline, tracing
from rtcompile.core.request import CompileRequest, ObjectCode
from rtcompile.errors import BatchError, InvalidRequest, RtcompileError
from rtcompile.progress import Outcome, shown
from rtcompile.settings import Settings
from rtcompile.workers import pool

__all__ = ["BuildFuture", "compile_many", "submit_many"]

# Besides the builds that run, some that look into the cache, or wait where a precompiled header
# may be finished before it is their turn.
_THREADS_BESIDE_SLOTS = 2


class BuildFuture(Future[ObjectCode]):
    """A build under way. ``asyncio.wrap_future`` makes it awaitable."""

    def __init__(self) -> None:
        super().__init__()
        self._cancellation = pool.Cancellation()

    def cancel(self) -> bool:
        """Cancel the build, also while a compiler runs, which is killed. False if it is done."""
        # No build is ever marked as running, so that Future cancels it at any time.
        if self.cancelled():
            return True
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()  # tells who waits in as_completed()
        self._cancellation.cancel()
        return True

    def run(self, build: Callable[[], ObjectCode]) -> None:
        """Do the build in this thread."""
        if self.cancelled():
            return
        token = pool.Cancellation.current.set(self._cancellation)
        # InvalidStateError: it was cancelled meanwhile.
        with suppress(InvalidStateError, pool.Cancelled):
            try:
                self.set_result(build())
            except Exception as error:
                self.set_exception(error)
        pool.Cancellation.current.reset(token)


def submit_many(
    builds: Iterable[Any],
    *,
    fallback: str | None = None,
    pch: bool | None = None,
    timeout: float | None = None,
    memory_limit: int | str | None = None,
) -> list[BuildFuture]:
    """Start many builds and return their futures, in order.

    Parameters and errors as for `compile_many`; each future gives its own `ObjectCode` or error.
    """
    overrides = {
        "fallback": fallback,
        "pch": pch,
        "timeout": timeout,
        "memory_limit": memory_limit,
    }
    # Here and not in the threads: "the current device" is that of the caller's thread.
    todo = [_decided(build, index, overrides) for index, build in enumerate(builds)]
    futures = [BuildFuture() for _ in todo]
    waiting: queue.SimpleQueue[tuple[BuildFuture, Callable[[], ObjectCode]]] = queue.SimpleQueue()
    for future, build in zip(futures, todo, strict=True):
        waiting.put((future, build))

    def work() -> None:
        with suppress(queue.Empty):
            while True:
                future, build = waiting.get_nowait()
                future.run(build)

    for index in range(min(len(todo), pool.slots() + _THREADS_BESIDE_SLOTS)):
        # Each in the caller's context, so that where he traces to holds here; daemons, so that a
        # program that is interrupted need not wait for a compiler.
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(work,), name=f"build {index}", daemon=True).start()
    return futures


def compile_many(
    builds: Iterable[Any],
    *,
    progress: bool | Callable[[int, int, Outcome], Any] | None = None,
    errors: str = "raise",
    trace: str | None = None,
    fallback: str | None = None,
    pch: bool | None = None,
    timeout: float | None = None,
    memory_limit: int | str | None = None,
) -> list[ObjectCode]:
    """Compile many modules in parallel, as many at once as the machine has cores and memory for.

    What is compiled is in the cache: a `RawModule` that was among them, or that is made of the same
    source later, finds it there.

    Parameters
    ----------
    builds : iterable of CompileRequest, RawModule or RawKernel
        What to compile. ``request.replace(options=…)`` makes variants of one template.
    progress : bool or callable, optional
        None shows a bar where stderr is a terminal or a notebook, True also plain lines elsewhere,
        False nothing. A callable is called with the number done, the total, and an `ObjectCode`
        or an error.
    errors : {"raise", "return"}
        Whether errors are gathered in one `BatchError` once all builds are done, or stand in the
        list in the place of results.
    trace : str, optional
        File for a Chrome trace of the whole; ``RTCOMPILE_TRACE`` sets the default.
    fallback, pch, timeout, memory_limit
        As in `rtcompile.compile`, for every build.

    Returns
    -------
    list of ObjectCode
        In the order of `builds`.

    Raises
    ------
    BatchError
        Some failed: ``.errors`` maps their position to their error, ``.results`` has the others.
    InvalidRequest
        An item that is none of the above.
    """
    if errors not in ("raise", "return"):
        raise InvalidRequest(f"errors must be 'raise' or 'return', not {errors!r}")
    with tracing.into(trace), tracing.span("compile_many"):
        futures = submit_many(
            builds, fallback=fallback, pch=pch, timeout=timeout, memory_limit=memory_limit
        )
        try:
            with shown(progress, len(futures)) as advance:
                for future in as_completed(futures):
                    advance(_outcome(future))
        except BaseException:
            for future in futures:
                future.cancel()
            raise
    outcomes: list[Any] = [_outcome(future) for future in futures]
    failed = {i: o for i, o in enumerate(outcomes) if not isinstance(o, ObjectCode)}
    if failed and errors == "raise":
        raise BatchError(failed, [None if i in failed else o for i, o in enumerate(outcomes)])
    return outcomes


def _outcome(future: Future[ObjectCode]) -> Outcome:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, RtcompileError):
        return error
    raise error


def _decided(item: Any, index: int, overrides: dict[str, Any]) -> Callable[[], ObjectCode]:
    """Return what builds the item; its architecture is fixed now."""
    settings = Settings.from_environ()
    if not isinstance(item, CompileRequest):
        # A RawModule or RawKernel: what it was given comes before what holds for the batch.
        build = getattr(item, "_build", None)
        request = getattr(build, "request", None)
        if build is None or request is None:
            raise InvalidRequest(
                f"item {index} is {item!r}; it may be a CompileRequest, or a RawModule or "
                "RawKernel with code"
            )
        own = {name: build.arguments[name] for name in overrides}
        overrides = {name: overrides[name] if own[name] is None else own[name] for name in own}
        item = request
    settings = settings.override(**overrides)
    if item.arch is None:
        choice = pipeline.plan(item.replace(link=()), settings).choice
        item = item.replace(arch=choice.arch, target=choice.target)
    return lambda: pipeline.build(item, settings)
