"""Shows the progress of builds: rich's bar in a terminal if rich is installed, else a line.

In a notebook the line is shown below the cell and updated in place, since rich would need
ipywidgets there. If stderr is no terminal (its output is a log), each line is printed below the one
before.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any

from rtcompile.errors import RtcompileError
from rtcompile.lookup import find as lookup
from rtcompile.request.object_code import ObjectCode
from rtcompile.styling import in_notebook, is_watched, takes_escapes
from rtcompile.workers import pool

Outcome = ObjectCode | RtcompileError
_SECONDS_BETWEEN_LINES = 1.0
_SECONDS_BETWEEN_CHANGES = 0.1


@contextmanager
def shown(
    progress: bool | Callable[[int, int, Outcome], Any] | None, total: int
) -> Iterator[Callable[[Outcome], None]]:
    """Show builds' progress; True: also as lines, None: only a bar. Yield what takes each outcome."""
    tally = _Tally(total)
    in_place = is_watched()
    display: AbstractContextManager[Callable[[Outcome], None]]
    if callable(progress):
        display = _reported(tally, progress)
    elif progress is False or (progress is None and not in_place):
        display = nullcontext(tally.count)
    elif in_place and not in_notebook() and _has_rich() and _has_a_thread():
        display = _bar(tally)
    elif in_place:
        display = _line(tally)
    else:
        display = nullcontext(_paced(tally, _SECONDS_BETWEEN_LINES, _print))
    with display as advance:
        yield advance


@contextmanager
def changing_line(*, keep: bool = False) -> Iterator[Callable[[str], None]]:
    """Yield a function that replaces the line before; the last may be kept."""
    if in_notebook():
        with _line_below_cell(keep) as write:
            yield write
        return
    if not takes_escapes(sys.stderr):
        yield lambda _: None
        return
    erase = "\r\033[K"
    try:
        yield lambda text: print(f"{erase}{text}", end="", file=sys.stderr, flush=True)
    finally:
        print("" if keep else erase, end="\n" if keep else "", file=sys.stderr, flush=True)


@contextmanager
def _line_below_cell(keep: bool) -> Iterator[Callable[[str], None]]:
    from IPython.display import clear_output, display

    handle: Any = None
    begun = False  # set before there is a handle, since an interrupt may come in between

    def write(text: str) -> None:
        nonlocal handle, begun
        data = {"text/plain": text}
        begun = True
        if handle is None:
            handle = display(data, raw=True, display_id=True)
        else:
            handle.update(data, raw=True)

    try:
        yield write
    finally:
        if begun and not keep:
            clear_output(wait=True)


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
        """Return the counts as one line."""
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


def _has_a_thread() -> bool:
    """Return whether a thread can be started, as rich does for its bar; ``ulimit -u`` may forbid it."""
    try:
        thread = threading.Thread(target=int)
        thread.start()
    except RuntimeError:
        return False
    thread.join()
    return True


@contextmanager
def _reported(
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
def _line(tally: _Tally) -> Iterator[Callable[[Outcome], None]]:
    with changing_line(keep=True) as write:
        write(tally.line())
        yield _paced(tally, _SECONDS_BETWEEN_CHANGES, write)


def _print(line: str) -> None:
    if sys.stderr is not None:  # `print` would take stdout in its place
        print(f"rtcompile: {line}", file=sys.stderr, flush=True)


def _paced(tally: _Tally, seconds: float, show: Callable[[str], None]) -> Callable[[Outcome], None]:
    """Return a function that counts an outcome, and shows the counts every `seconds` and at the end."""
    last = tally.begin

    def advance(outcome: Outcome) -> None:
        nonlocal last
        tally.count(outcome)
        now = time.monotonic()
        if tally.done == tally.total or now - last >= seconds:
            last = now
            show(tally.line())

    return advance


class FirstRun:
    """Says how many kernels are left to compile while a program waits, once it has waited long.

    The line is gone when the program goes on, so that it does not run into the program's own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._display = ExitStack()
        self._write: Callable[[str], None] | None = None
        self._waiting = self._done = 0
        self._seconds = 0.0  # that the program has waited before
        self._since = 0.0  # when it began to wait, or to go on
        self._has_thread = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Show the line while the program waits for a build; a batch shows its own."""
        if pool.Cancellation.current.get() is not None:
            yield
            return
        with self._lock:
            if not self._waiting:
                self._since = time.monotonic()
            self._waiting += 1
            if not self._has_thread:
                with suppress(RuntimeError):  # no more threads
                    threading.Thread(target=self._show, daemon=True).start()
                    self._has_thread = True
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                self._done += 1
                if not self._waiting:
                    now = time.monotonic()
                    self._seconds, self._since = self._seconds + now - self._since, now
                    self._write = None
                    self._display.close()

    def _show(self) -> None:
        while True:
            time.sleep(_SECONDS_BETWEEN_CHANGES)
            with self._lock:
                seconds = time.monotonic() - self._since
                if not self._waiting and seconds > _LONG:
                    self._has_thread = False
                    return
                if self._waiting and self._seconds + seconds > _LONG:
                    if self._write is None:
                        line = changing_line(keep=in_notebook())
                        self._write = self._display.enter_context(line)
                    self._write(self._line())

    def _line(self) -> str:
        ahead = lookup.builds_ahead
        done, left = (0, 0) if ahead is None else ahead.counts()
        done += self._done
        total = done + self._waiting + left
        kernels = "1 kernel" if total == 1 else f"{total} kernels"
        return f"rtcompile: {kernels} to compile, {done} done; the next run finds them in the cache"


_LONG = 2.0  # seconds
first_run = FirstRun()


def _forget_after_fork() -> None:
    global first_run
    first_run = FirstRun()


os.register_at_fork(after_in_child=_forget_after_fork)
