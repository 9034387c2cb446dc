"""One shared store, and when it is left alone: a circuit breaker.

A store that fails causes one warning. The time that a process waits for its slow answers is limited to
a second in all, whichever of the threads wait, and at the end of the process too.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from rtcompile.cluster.stores import (
    ANSWER_SECONDS,
    LeasesUnsupportedError,
    SharedStore,
    StoreError,
)
from rtcompile.errors import RtcompileWarning

_CLOSED_SECONDS = 60.0  # for which a store that failed is not asked
_MOST_WAITED_SECONDS = 1.0  # for slow answers of one store, in the life of a process
_BACKGROUND_SECONDS = 5.0  # for an answer that no build waits for
PROMPT_SECONDS = 0.1  # an answer in this time is not slow
_TICK_SECONDS = 0.02

_ACTS = {"get": "read", "put": "write", "acquire": "write", "renew": "write", "release": "remove"}

_T = TypeVar("_T")


class Tier:
    """One store, the counts of this process, and the time that it has waited for the store."""

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self.hits = self.misses = self.written = self.failures = 0
        self.problem = ""  # why it is not used now, "" if it is
        self._waited: list[tuple[float, float]] = []  # from and to when threads waited
        # `.waits_anyway`: for another node's build, so slow answers do not count.
        self.this_thread = threading.local()
        self._closed_until = self._not_written_until = 0.0
        self._guard = threading.Lock()
        self._warned = False

    @property
    def open(self) -> bool:
        """Whether it is used now."""
        return time.monotonic() >= self._closed_until

    @property
    def writable(self) -> bool:
        """Whether it is to be written to now: one that is full, or forbids it, can still be read."""
        return self.open and time.monotonic() >= self._not_written_until

    @property
    def left(self) -> float:
        """The seconds for which this process may still wait for slow answers."""
        return _MOST_WAITED_SECONDS - sum(end - begin for begin, end in self._waited)

    def spend(self, until: float, waited: float) -> None:
        """Count that a thread waited for some seconds; threads that wait at once share the time."""
        merged: list[tuple[float, float]] = []
        for begin, end in sorted([*self._waited, (until - waited, until)]):
            if merged and begin <= merged[-1][1]:
                begin, last = merged.pop()
                end = max(end, last)
            merged.append((begin, end))
        self._waited = merged

    def ask(self, method: str, *given: Any, waiting: bool = True, **named: Any) -> Any:
        """Return what a method of the store returns, True if that is None; None if it does not answer.

        The answer of "get" for a key that is missing is None. A caller that is `waiting` gets at most
        `ANSWER_SECONDS`, and less once another thread finds that the store does not respond. A store
        that refuses to write is still read, and one that refuses to release a lease loses nothing.
        """
        act = _ACTS[method]
        if not (self.writable if act == "write" else self.open):
            return None
        question = partial(getattr(self.store, method), *given, **named)
        seconds = min(ANSWER_SECONDS, self.left) if waiting else _BACKGROUND_SECONDS
        answer, took, problem = within(seconds, question, lambda: self.open)
        slow = took > PROMPT_SECONDS
        patient = getattr(self.this_thread, "waits_anyway", False) and not problem
        waited = took if waiting and not patient else 0.0
        with self._guard:
            if slow and waited:
                self.spend(time.monotonic(), waited)
            self._judge(problem, slow, waited, act)
        return True if answer is None and act != "read" and not problem else answer

    def _judge(self, problem: str, slow: bool, waited: float, act: str) -> None:
        """Close the store after an answer that was late, or none; the first is warned of."""
        if not self.open:  # another thread found it so
            return
        # Either any answer that is not prompt, or one that takes as long as this one, is too much.
        least = PROMPT_SECONDS if problem else waited
        for_good = slow and waited > 0 and self.left < least
        if for_good or (problem and (slow or act == "read")):
            self._closed_until = float("inf") if for_good else time.monotonic() + _CLOSED_SECONDS
            how = f"left alone {'from now on' if for_good else 'for a minute'}"
        elif problem and act == "write":
            self._not_written_until = time.monotonic() + _CLOSED_SECONDS
            how = "not written to for a minute"
        else:
            return
        problem = problem or f"an answer took {waited:.1f} s"
        self._fail(
            problem, f"is {how}: {problem}. Builds go on without it; `rtcompile doctor` tries it."
        )

    def refused(self, problem: str) -> None:
        """Count an entry that is not valid, with a warning for the first."""
        self._fail(
            f"an entry was refused: {problem}",
            f"gave what is not used: {problem}. Do all nodes have the same key in "
            "RTCOMPILE_REMOTE_KEY_FILE, and the same RTCOMPILE_REMOTE_UNSIGNED?",
        )

    def _fail(self, problem: str, what: str) -> None:
        self.failures += 1
        self.problem = problem
        if not self._warned:
            self._warned = True
            text = f"RTCOMPILE_REMOTE: {self.store.name} {what}"
            warnings.warn(text, RtcompileWarning, stacklevel=2)


def within(
    seconds: float, ask: Callable[[], _T], wanted: Callable[[], bool] = lambda: True
) -> tuple[_T | None, float, str]:
    """Return what `ask` returns in another thread, the seconds it took, and a `StoreError`'s text.

    A thread that gives no answer within `seconds`, or while the answer is `wanted`, is left behind.
    Time is counted in ticks of this thread: a process that waits for a processor counts few of them,
    and so does not find a store slow that answers at once.
    """
    done = threading.Event()
    answers: list[_T] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            answers.append(ask())
        except Exception as error:
            errors.append(error)
        done.set()

    begin, ticks = time.monotonic(), 0
    try:
        threading.Thread(target=run, name="rtcompile-store", daemon=True).start()
    except RuntimeError:
        # From Python 3.12 on none is started at the process's end, which waits for a limited time.
        if threading.main_thread().is_alive():
            return None, 0.0, "there is no thread to ask it with"
        run()
    while not done.wait(_TICK_SECONDS):
        ticks += 1
        if (ticks + 1) * _TICK_SECONDS > seconds or not wanted():
            break
    took = min(time.monotonic() - begin, (ticks + 1) * _TICK_SECONDS)
    if not done.is_set():
        return None, took, f"no answer in {seconds:g} s"
    for error in errors:
        if isinstance(error, StoreError) and not isinstance(error, LeasesUnsupportedError):
            return None, took, str(error)
        raise error
    return answers[0], took, ""
