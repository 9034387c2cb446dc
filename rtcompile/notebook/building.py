"""Build several units at once: nothing to see while it is quick, a bar if not, and Ctrl-C ends it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from rtcompile.core.request import CompileRequest, ObjectCode
from rtcompile.many import BuildFuture, completed, submit_many
from rtcompile.progress import element, in_notebook, shown

__all__ = ["build"]

_QUIET_SECONDS = 0.5
_SECONDS_BETWEEN_UPDATES = 0.25


def build(requests: Sequence[CompileRequest]) -> list[ObjectCode]:
    """Return the builds of `requests`, in order.

    Raises
    ------
    RtcompileError
        Of the first request that failed; the others are done then, and in the cache.
    KeyboardInterrupt
        The cell was interrupted; no compiler runs any longer.
    """
    futures = submit_many(requests)
    try:
        if wait(futures, timeout=_QUIET_SECONDS).not_done:
            (_watch_in_notebook if in_notebook() else _watch)(futures)
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    return [future.result() for future in futures]


def _watch(futures: Sequence[BuildFuture]) -> None:
    with shown(None, len(futures)) as advance:
        for future in completed(futures):
            if future.exception() is None:
                advance(future.result())


def _watch_in_notebook(futures: Sequence[BuildFuture]) -> None:
    """Show a bar that moves while one long build runs, and take it away in the end."""
    from IPython.display import clear_output, display

    begin = time.monotonic() - _QUIET_SECONDS
    handle = None
    pending: set[Future[ObjectCode]] = set(futures)
    try:
        while pending:
            done = len(futures) - len(pending)
            of = f"{done} of {len(futures)} done, " if len(futures) > 1 else ""
            text = f"compiling: {of}{time.monotonic() - begin:.0f} s"
            data = element(done, len(futures), text)
            if handle is None:
                handle = display(data, raw=True, display_id=True)
            else:
                handle.update(data, raw=True)
            pending = wait(
                pending, timeout=_SECONDS_BETWEEN_UPDATES, return_when=FIRST_COMPLETED
            ).not_done
    finally:
        clear_output(wait=True)
