"""One shared store, and when it is left alone: a circuit breaker.

A store that fails causes one warning. The time that a process waits for its slow answers is limited to
a second in all, whichever of the threads wait, and at the end of the process too.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeVar

from rtcompile.cluster.patience import Patience, Unanswered, own_seconds, within
from rtcompile.cluster.stores import (
    ANSWER_SECONDS,
    LeasesUnsupportedError,
    SharedStore,
    StoreError,
)
from rtcompile.errors import RtcompileWarning

_CLOSED_SECONDS = 60.0  # for which a store that failed is not asked
_MOST_WAITED_SECONDS = 1.0  # for slow answers of one store, in the life of a process
_PROMPT_SECONDS = 0.1  # an answer in this time is not slow

Act = Literal["read", "write", "remove"]

_T = TypeVar("_T")


class Tier:
    """One store, the counts of this process, and the time that it has waited for the store."""

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self.hits = self.misses = self.written = self.failures = 0
        self.problem = ""  # why it is not used now, "" if it is
        self.patience = Patience(_MOST_WAITED_SECONDS)
        # When an exiting process began to wait for background writes.
        self.flushed_since: float | None = None
        self._waits_anyway = threading.local()
        self._closed_until = self._not_written_until = 0.0
        self._closing = threading.Lock()
        self._warned = False

    @property
    def open(self) -> bool:
        """Whether it is used now."""
        return time.monotonic() >= self._closed_until

    @property
    def writable(self) -> bool:
        """Whether it is to be written to now: one that is full, or forbids it, can still be read."""
        return self.open and time.monotonic() >= self._not_written_until

    def ask(
        self,
        question: Callable[[SharedStore], _T],
        *,
        waiting: bool = True,
        act: Act = "read",
    ) -> _T | None:
        """Return the store's answer, None where it gives none.

        A caller that is `waiting` gets at most `ANSWER_SECONDS`, and less once another thread finds
        that the store does not respond. A store that refuses to write is still read, and one that
        refuses to remove loses nothing.
        """
        with self.patience.asking() as awake:
            if not (self.writable if act == "write" else self.open):
                return None
            ours, begin = own_seconds(), time.monotonic()
            answer, problem = None, ""
            try:
                if waiting:
                    seconds = min(ANSWER_SECONDS, self.patience.left)
                    answer = within(seconds, lambda: question(self.store), awake)
                else:
                    answer = question(self.store)
            except LeasesUnsupportedError:
                raise
            except (StoreError, Unanswered) as error:
                problem = str(error)
        end = time.monotonic()
        # What this thread computed, or waited for a processor, is not the store's fault.
        took = max(0.0, end - begin - (own_seconds() - ours))
        slow = took > _PROMPT_SECONDS
        if waiting:
            lost = problem or not getattr(self._waits_anyway, "yes", False)
            waited = took if lost else 0.0
        else:
            waited = 0.0 if self.flushed_since is None else min(took, end - self.flushed_since)
        if slow and waited:
            self.patience.spend(end, waited)
        with self._closing:
            self._judge(problem, slow, waited, act)
        return answer

    def _judge(self, problem: str, slow: bool, waited: float, act: Act) -> None:
        """Close the store after an answer that was late, or none; the first is warned of."""
        if not self.open:  # another thread found it so
            return
        # Either any answer that is not prompt, or one that takes as long as this one, is too much.
        least = _PROMPT_SECONDS if problem else waited
        for_good = slow and waited > 0 and self.patience.left < least
        if for_good or (problem and (slow or act == "read")):
            self._closed_until = float("inf") if for_good else time.monotonic() + _CLOSED_SECONDS
            self.patience.give_up()
            how = f"left alone {'from now on' if for_good else 'for a minute'}"
            self._fail(problem or f"an answer took {waited:.1f} s", how)
        elif problem and act == "write":
            self._not_written_until = time.monotonic() + _CLOSED_SECONDS
            self._fail(problem, "not written to for a minute")

    @contextmanager
    def waiting_anyway(self) -> Iterator[None]:
        """Do not count, in this thread, how slow answers are: it waits for another node's build."""
        self._waits_anyway.yes = True
        try:
            yield
        finally:
            self._waits_anyway.yes = False

    def refused(self, problem: str) -> None:
        """Count an entry that is not valid, with a warning for the first."""
        self.failures += 1
        self.problem = f"an entry was refused: {problem}"
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"RTCOMPILE_REMOTE: {self.store.name} gave what is not used: {problem}. Do all nodes "
                "have the same key in RTCOMPILE_REMOTE_KEY_FILE, and the same RTCOMPILE_REMOTE_UNSIGNED?",
                RtcompileWarning,
                stacklevel=2,
            )

    def _fail(self, problem: str, how: str) -> None:
        self.failures += 1
        self.problem = problem
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"RTCOMPILE_REMOTE: {self.store.name} is {how}: {problem}. "
                "Builds go on without it; `rtcompile doctor` tries it.",
                RtcompileWarning,
                stacklevel=2,
            )
