"""How far a batch has come: a bar where somebody watches, plain lines where a log is kept."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rtcompile.core.request import ObjectCode
from rtcompile.errors import RtcompileError

__all__ = ["Outcome", "element", "in_notebook", "shown"]

Outcome = ObjectCode | RtcompileError
_SECONDS_BETWEEN_LINES = 1.0
_SECONDS_BETWEEN_DRAWINGS = 0.1


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
    watched = sys.stderr.isatty()
    display: AbstractContextManager[Callable[[Outcome], None]]
    if callable(progress):
        display = _told(tally, progress)
    elif progress is not False and in_notebook():
        display = _element(tally)
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

    def line(self) -> str:
        """Return all of it in a line."""
        counts = f"{self.done} of {self.total} compiled {self}".rstrip()
        return f"{counts} in {time.monotonic() - self.begin:.1f} s"

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

    columns = (
        TextColumn("compiling"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=tally.total)

        def advance(outcome: Outcome) -> None:
            tally.count(outcome)
            bar.update(task, advance=1, description=str(tally))

        yield advance


@contextmanager
def _element(tally: _Tally) -> Iterator[Callable[[Outcome], None]]:
    """Show a bar below the cell: an HTML element that any front end draws and a saved notebook keeps.

    rich's needs ipywidgets, and warns twice a batch where they are not installed.
    """
    from IPython.display import display

    handle = display(element(0, tally.total, tally.line()), raw=True, display_id=True)

    def draw() -> None:
        handle.update(element(tally.done, tally.total, tally.line()), raw=True)

    yield _paced(tally, _SECONDS_BETWEEN_DRAWINGS, draw)


def element(done: int, total: int, text: str) -> dict[str, str]:
    """Return a bar for IPython to display; one that only moves while nothing is done."""
    value = f'value="{done}" max="{total}"' if done else ""
    return {"text/plain": text, "text/html": f"<progress {value}></progress> {text}"}


@contextmanager
def _lines(tally: _Tally) -> Iterator[Callable[[Outcome], None]]:
    def write() -> None:
        print(f"rtcompile: {tally.line()}", file=sys.stderr, flush=True)

    yield _paced(tally, _SECONDS_BETWEEN_LINES, write)


def _paced(tally: _Tally, seconds: float, show: Callable[[], None]) -> Callable[[Outcome], None]:
    """Return what counts an outcome and shows the tally: now and then, and in the end."""
    last = tally.begin

    def advance(outcome: Outcome) -> None:
        nonlocal last
        tally.count(outcome)
        now = time.monotonic()
        if tally.done == tally.total or now - last >= seconds:
            last = now
            show()

    return advance
