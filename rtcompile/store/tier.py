"""One shared store: the time it cost and saved this process, and when requests are sent to it.

A store is used as long as it saved more time than it cost; each store begins with a credit of one second. A store
that does not respond, or costs more than it saves, is paused for 1, 2, 4 … 60 seconds. A background thread tries it
again, so no build waits for it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from rtcompile import logs
from rtcompile.errors import warn
from rtcompile.store.shared import (
    REPLY_SECONDS,
    BadEntryError,
    LeasesUnsupportedError,
    SharedStore,
    first_line,
)

# Credit of a store that has not saved any time yet; also the limit for its first reply.
_FIRST_SECONDS = 1.0
_LEAST_SECONDS = 0.25
_TRIAL_SECONDS = 0.5  # credit after a pause for costing too much
# The fraction of the compilers' time that a process may spend on misses of stores.
_PART_COMPILED = 0.5
_LEAST_PAUSE, _MOST_PAUSE = 1.0, 60.0
_NOT_WRITTEN_SECONDS = 60.0  # for which a store that rejects writes is only read
_BACKGROUND_SECONDS = 5.0  # for a reply that no build waits for
_TICK_SECONDS = 0.02

_WRITES = ("put", "create", "replace")
_OF_BUILDS = ("requests", "hits", "misses", "bytes_read", "seconds_waited", "seconds_spared")

_HINT = "Builds go on without it; `rtcompile doctor` tries it."

_T = TypeVar("_T")


class Ledger:
    """The time builds waited for a store, the time its hits saved, and the pauses that follow. Pure."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.waited = self.spared = self.compiled = 0.0  # seconds
        self.has_replied = False
        self.is_silent = False  # whether it is paused because it did not respond
        self.pauses = 0
        self._forgiven = 0.0  # costs that no longer count
        self._counted_until = float("-inf")
        self._resumes_at = 0.0
        self._next_pause = _LEAST_PAUSE

    @property
    def balance(self) -> float:
        """The seconds for which builds may still wait."""
        earned = _FIRST_SECONDS + self.spared + _PART_COMPILED * self.compiled + self._forgiven
        return earned - self.waited

    @property
    def is_paused(self) -> bool:
        """Whether builds currently do not use the store."""
        return self._clock() < self._resumes_at

    def time_limit(self) -> float:
        """Return how long a build waits for the next reply."""
        most = REPLY_SECONDS if self.has_replied else _FIRST_SECONDS
        return max(_LEAST_SECONDS, min(most, self.balance))

    def wait(self, seconds: float) -> None:
        """Count a thread's wait until now; overlapping waits of threads count once."""
        now = self._clock()
        self.waited += min(seconds, now - self._counted_until)
        self._counted_until = now

    def hit(self, compiled: float, waited: float) -> None:
        """Count a hit that saved `compiled` seconds; waiting for a hit costs nothing."""
        self.spared += compiled
        self._forgiven += waited + max(0.0, -self.balance)
        self._next_pause = _LEAST_PAUSE

    def pause(self, silent: bool) -> float:
        """Begin a pause, twice as long as the last one; return its length in seconds."""
        seconds, self._next_pause = self._next_pause, min(2 * self._next_pause, _MOST_PAUSE)
        self._resumes_at = self._clock() + seconds
        self.is_silent = silent
        self.pauses += 1
        return seconds

    def try_again(self) -> None:
        """Let builds use a store again, briefly, that had cost too much."""
        self._forgiven += max(0.0, _TRIAL_SECONDS - self.balance)


class _Here(threading.local):
    """Counts of one thread's requests to a store."""

    def __init__(self) -> None:
        self.counts: dict[str, float] = dict.fromkeys(_OF_BUILDS, 0)
        self.waits_anyway = False  # for another node's build, so slow replies do not count


class Tier:
    """One store, with this process's counts and its ledger."""

    def __init__(self, store: SharedStore, clock: Callable[[], float] = time.monotonic) -> None:
        self.store = store
        self.ledger = Ledger(clock)
        self.counts: Counter[str] = Counter()
        self._reported: dict[str, float] = {}
        self.problem = ""  # the last one, "" if there was none
        self.here = _Here()
        self._clock = clock
        self._not_written_until = 0.0
        self._guard = threading.Lock()
        self._probe: threading.Thread | None = None
        self._has_warned = False

    @property
    def open(self) -> bool:
        """Whether it responds, as far as known; a store that costs too much is still written to."""
        return not self.ledger.is_silent

    @property
    def writable(self) -> bool:
        """Whether to write to it now; a full or read-only store can still be read."""
        return self.open and self._clock() >= self._not_written_until

    def query(self, method: str, *given: Any, waiting: bool = True) -> Any:
        """Return the result of a method of the store, with None as True; None if it does not respond."""
        # A caller that is `waiting` waits as long as the ledger allows, or until another thread gets no response.
        act = "write" if method in _WRITES else "read" if method.startswith("get") else "remove"
        if not self._may_query(waiting) or (act == "write" and not self.writable):
            return None
        seconds = self.ledger.time_limit() if waiting else _BACKGROUND_SECONDS
        self.count("requests")
        request = partial(getattr(self.store, method), *given)
        try:
            reply, took, problem = within(seconds, request, lambda: self.open)
        except BadEntryError as error:
            self.refused(f"{given[0] if given else ''}: {error}")
            return None
        with self._guard:
            if act == "read":
                chunks = reply if isinstance(reply, list) else [reply]
                self.count("bytes_read", sum(len(c) for c in chunks if isinstance(c, bytes)))
            if waiting:
                self.here.counts["seconds_waited"] += took
                if problem or not self.here.waits_anyway:
                    self.ledger.wait(took)
            self._judge(problem, took, act, waiting)
        return True if reply is None and act != "read" and not problem else reply

    def _may_query(self, waiting: bool) -> bool:
        ledger = self.ledger
        with self._guard:
            if not ledger.is_silent:
                if ledger.is_paused:
                    return not waiting
                if waiting and ledger.balance <= 0:
                    ledger.try_again()
                return True
            if ledger.is_paused or (self._probe is not None and self._probe.is_alive()):
                return False
            self._probe = threading.Thread(target=self._try, name="rtcompile-probe", daemon=True)
            with suppress(RuntimeError):  # no new threads at the process's end
                self._probe.start()
            return False

    def _try(self) -> None:
        """Send a test request to a silent store, while builds continue without it."""
        _, _, problem = within(REPLY_SECONDS, lambda: self.store.get("probe/none"))
        with self._guard:
            if problem:
                self._pause(problem, silent=True)
            else:
                self.ledger.is_silent = False
                logs.note(f"shared store {self.store.name} responds again")

    def _judge(self, problem: str, took: float, act: str, waiting: bool) -> None:
        """Pause the store after a missing or too slow reply, with a warning the first time."""
        ledger = self.ledger
        if not self.open:  # another thread has paused it
            return
        ledger.has_replied = ledger.has_replied or not problem
        if problem and (act == "read" or took >= REPLY_SECONDS / 2):
            self._pause(problem, silent=True)
        elif problem and act == "write":
            self._not_written_until = self._clock() + _NOT_WRITTEN_SECONDS
            self._fail(problem, f"is not written to for a minute: {problem}")
        elif waiting and ledger.balance <= 0 and not ledger.is_paused:
            text = f"its replies cost {ledger.waited:.1f} s and saved {ledger.spared:.1f} s"
            self._pause(text, silent=False)

    def _pause(self, why: str, *, silent: bool) -> None:
        seconds = self.ledger.pause(silent)
        self._fail(why, f"is paused for {seconds:.0f} s: {why}")

    def count(self, name: str, number: int = 1) -> None:
        """Add to what this process and this thread requested."""
        self.counts[name] += number
        self.here.counts[name] += number

    def hit(self, milliseconds: float, waited: float) -> None:
        """Count a hit, and the milliseconds that its compile took."""
        with self._guard:
            self.count("hits")
            self.here.counts["seconds_spared"] += milliseconds / 1e3
            self.ledger.hit(milliseconds / 1e3, waited)

    def refused(self, problem: str) -> None:
        """Count an entry that is not valid, with a warning for the first."""
        self.counts["refused"] += 1
        hint = "Do all nodes have the same key in RTCOMPILE_REMOTE_KEY_FILE, and the same RTCOMPILE_REMOTE_UNSIGNED?"
        self._fail(
            f"an entry was refused: {problem}",
            f"returned an entry that is not used: {problem}",
            hint,
        )

    def _fail(self, problem: str, what: str, hint: str = _HINT) -> None:
        self.counts["failures"] += 1
        self.problem = problem
        logs.note(f"shared store {self.store.name} {what}")
        if not self._has_warned:
            self._has_warned = True
            warn(f"RTCOMPILE_REMOTE: {self.store.name} {what}. {hint}")

    def unreported(self) -> dict[str, float]:
        """Return the counts since the last call, with the seconds waited and saved."""
        ledger, before = self.ledger, self._reported
        now: dict[str, float] = {**self.counts, "pauses": ledger.pauses}
        self._reported = now | {"seconds_waited": ledger.waited, "seconds_spared": ledger.spared}
        changed = {name: n - before.get(name, 0) for name, n in self._reported.items()}
        return {name: n for name, n in changed.items() if n}


def within(
    seconds: float, call: Callable[[], _T], wanted: Callable[[], bool] = lambda: True
) -> tuple[_T | None, float, str]:
    """Run `call` in another thread for `seconds`; return its result, its seconds, and the text of its error."""
    # Time is counted in this thread's ticks: on an overloaded machine there are few, so a quick store does not seem
    # slow.
    reply: Future[_T] = Future()

    def run() -> None:
        try:
            reply.set_result(call())
        except Exception as error:  # noqa: BLE001  # a store's client may raise anything
            reply.set_exception(error)

    begin, ticks = time.monotonic(), 1
    try:
        threading.Thread(target=run, name="rtcompile-store", daemon=True).start()
    except RuntimeError:
        # From Python 3.12 on, no thread starts at the process's end, which waits for a limited time.
        if threading.main_thread().is_alive():
            return None, 0.0, "no thread can be started to query it"
        run()
    while not futures.wait([reply], _TICK_SECONDS).done:
        if (ticks + 1) * _TICK_SECONDS > seconds or not wanted():
            break
        ticks += 1
    took = min(time.monotonic() - begin, (ticks + 1) * _TICK_SECONDS)
    if not reply.done():
        return None, took, f"no reply in {seconds:.2g} s"
    error = reply.exception()
    if isinstance(error, (LeasesUnsupportedError, BadEntryError)):
        raise error
    return (None, took, first_line(error)) if error else (reply.result(), took, "")
