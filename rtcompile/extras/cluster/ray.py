"""Ray: runs batches as tasks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any

from rtcompile.errors import InvalidRequest, public


class RayExecutor(Executor):
    """Run functions as Ray's tasks: ``compile_many(builds, executor=RayExecutor())``.

    Parameters
    ----------
    **options
        Of each task, as ``ray.remote`` takes them: ``num_cpus=1``, ``resources={"build": 1}``,
        ``scheduling_strategy="SPREAD"``.

    Raises
    ------
    InvalidRequest
        Ray is not installed.
    """

    @public
    def __init__(self, **options: Any) -> None:
        try:
            import ray
        except ModuleNotFoundError as missing:
            if missing.name != "ray":
                raise
            raise InvalidRequest("RayExecutor needs Ray: pip install ray") from None
        if not ray.is_initialized():
            ray.init()
        self._ray: Any = ray
        self._task = ray.remote(**{"num_cpus": 1, **options})(_call)
        self._running: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Start ``fn(*args, **kwargs)`` on some worker."""
        reference = self._task.remote(fn, args, kwargs)
        future: Future[Any] = reference.future()

        def end(future: Future[Any]) -> None:
            self._running.discard(future)
            if future.cancelled():  # Ray's own future leaves the task running
                self._ray.cancel(reference, force=False)

        self._running.add(future)
        future.add_done_callback(end)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for what runs, or cancel it; Ray itself goes on."""
        for future in list(self._running):
            if cancel_futures:
                future.cancel()
            elif wait:
                with suppress(BaseException):  # the future's holder is notified
                    future.exception()


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return function(*args, **kwargs)
