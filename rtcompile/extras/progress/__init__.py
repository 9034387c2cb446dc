"""Shows the progress of builds: a line that changes in a terminal or below a notebook's cell, and lines in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from rtcompile import ObjectCode, RtcompileError, forks
from rtcompile.lookup import find as lookup
from rtcompile.styling import changing_line, in_notebook, is_watched

_Outcome = ObjectCode | RtcompileError
_MOST_SILENT_SECONDS = 10.0  # in a log, where a long silence looks like a hang
_SECONDS_BETWEEN_CHANGES = 0.1


@contextmanager
def shown_progress(
    progress: bool | Callable[[int, int, _Outcome], Any] | None, total: int
) -> Iterator[Callable[[_Outcome], None]]:
    """Yield a function to call with each outcome; show progress: True also in a log, None only in a changing line."""
    begin = time.monotonic()
    counts = {"done": 0, "cached": 0, "failed": 0}

    def line() -> str:
        found = [f"{counts[name]} {name}" for name in ("cached", "failed") if counts[name]]
        special = f" ({', '.join(found)})" if found else ""
        seconds = time.monotonic() - begin
        return f"{counts['done']} of {total} compiled{special} in {seconds:.1f} s"

    def advance(outcome: _Outcome) -> None:
        counts["done"] += 1
        counts["cached"] += isinstance(outcome, ObjectCode) and outcome.build.hit is not None
        counts["failed"] += not isinstance(outcome, ObjectCode)
        if callable(progress):
            progress(counts["done"], total, outcome)

    watched = is_watched()
    if callable(progress) or progress is False or (progress is None and not watched):
        yield advance
        return
    seconds = _SECONDS_BETWEEN_CHANGES if watched else _MOST_SILENT_SECONDS
    with changing_line(keep=True) if watched else nullcontext(_print) as show:
        if watched:
            show(line())

        def repeat(ended: threading.Event) -> None:
            while not ended.wait(seconds):
                show(line())

        with _beside(repeat):
            yield advance
        show(line())


@contextmanager
def _beside(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Run `work` in a thread, and at the end of the body of ``with`` set its event and wait for it."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), daemon=True)
    with suppress(RuntimeError):  # no more threads
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()


def _print(line: str) -> None:
    if sys.stderr is not None:  # `print` would take stdout in its place
        print(f"rtcompile: {line}", file=sys.stderr, flush=True)


class FirstRun:
    """Shows a line with the number of kernels left, once a program has waited for some time, and removes it."""

    def __init__(self) -> None:
        self.forget()
        forks.in_child(self.forget)

    def forget(self) -> None:
        """Begin anew, as in a forked child."""
        self._is_shown = threading.Lock()
        self._waiting = self._done = 0
        self._seconds = 0.0  # that the program has already waited

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Show the line while the program waits for a build."""
        begin = time.monotonic()
        self._waiting += 1
        try:
            with _beside(self._show):
                yield
        finally:
            self._waiting -= 1
            self._done += 1
            self._seconds += time.monotonic() - begin

    def _show(self, ended: threading.Event) -> None:
        if ended.wait(max(0.0, _LONG - self._seconds)) or not self._is_shown.acquire(False):
            return
        try:
            with changing_line(keep=in_notebook()) as write:
                write(self._line())
                while not ended.wait(_SECONDS_BETWEEN_CHANGES):
                    write(self._line())
        finally:
            self._is_shown.release()

    def _line(self) -> str:
        ahead = lookup.builds_ahead
        done, left = (0, 0) if ahead is None else ahead.counts()
        done += self._done
        total = done + self._waiting + left
        kernels = "1 kernel" if total == 1 else f"{total} kernels"
        return f"rtcompile: {kernels} to compile, {done} done; the next run finds them in the cache"


_LONG = 2.0  # seconds
first_wait = FirstRun().waiting
