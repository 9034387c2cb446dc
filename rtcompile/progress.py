"""How far a batch has come: a bar where somebody watches, plain lines where a log is kept."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rtcompile.core.request import ObjectCode
from rtcompile.errors import RtcompileError

__all__ = ["Outcome", "in_notebook", "shown"]

Outcome = ObjectCode | RtcompileError
_SECONDS_BETWEEN_LINES = 1.0


@contextmanager
def shown(
    progress: bool | Callable[[int, int, Outcome], Any] | None, total: int
) -> Iterator[Callable[[Outcome], None]]:
    """Show the progress of `total` builds; yield what to call with each outcome.

    Parameters
    ----------
    progress : bool, callable or None
        True: a bar, or lines where stderr is no terminal. None: the bar only. False: nothing. A
        callable is given the number done, the total, and the outcome.
    total : int
        How many builds there are.
    """
    tally = _Tally(total)
    watched = in_notebook() or sys.stderr.isatty()
    display: AbstractContextManager[Callable[[Outcome], None]]
    if callable(progress):
        display = _told(tally, progress)
    elif progress is False or (progress is None and not watched):
        display = nullcontext(tally.count)
    elif watched and _has_rich():
        display = _bar(tally)
    else:
        display = _lines(tally)
    with display as advance:
        yield advance


class _Tally:
    def __init__(self, total: int) -> None:
        self.total = total
        self.done = self.cached = self.failed = 0
        self.begin = time.monotonic()

    def count(self, outcome: Outcome) -> None:
        self.done += 1
        if isinstance(outcome, ObjectCode):
            self.cached += outcome.build.hit is not None
        else:
            self.failed += 1

    def __str__(self) -> str:
        parts = [f"{self.cached} cached"] if self.cached else []
        parts += [f"{self.failed} failed"] if self.failed else []
        return f"({', '.join(parts)})" if parts else ""


def _has_rich() -> bool:
    try:
        import rich.progress  # noqa: F401
    except ImportError:
        return False
    return True


def in_notebook() -> bool:
    """Say whether this is a Jupyter kernel: what is displayed goes to a browser."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


@contextmanager
def _told(
    tally: _Tally, report: Callable[[int, int, Outcome], Any]
) -> Iterator[Callable[[Outcome], None]]:
    def advance(outcome: Outcome) -> None:
        tally.count(outcome)
        report(tally.done, tally.total, outcome)

    yield advance


@contextmanager
def _bar(tally: _Tally) -> Iterator[Callable[[Outcome], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    # In a notebook rich shows its bar by itself, as a widget where ipywidgets is installed.
    console = None if in_notebook() else Console(stderr=True)
    columns = (
        TextColumn("compiling"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=tally.total)

        def advance(outcome: Outcome) -> None:
            tally.count(outcome)
            bar.update(task, advance=1, description=str(tally))

        yield advance


@contextmanager
def _lines(tally: _Tally) -> Iterator[Callable[[Outcome], None]]:
    last = tally.begin

    def advance(outcome: Outcome) -> None:
        nonlocal last
        tally.count(outcome)
        now = time.monotonic()
        if tally.done == tally.total or now - last >= _SECONDS_BETWEEN_LINES:
            last = now
            line = f"rtcompile: {tally.done} of {tally.total} compiled {tally}".rstrip()
            print(f"{line} in {now - tally.begin:.1f} s", file=sys.stderr, flush=True)

    yield advance
