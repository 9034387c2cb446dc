"""One shared store: its signed entries, the time that it costs and saves this process, and when requests are sent to it.

Each store begins with a credit of one second. Waiting for it takes from the credit; the compile time that its hits
save, and half of the compile time of its misses, adds to it. A store without credit, or one that does not respond, is
paused for 1, 2, 4 … 60 seconds. After a silence, a background thread tries it, so no build waits for it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent import futures
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

from rtcompile.errors import warn
from rtcompile.extras.cluster.entries import (
    MOST_BYTES,
    REPLY_SECONDS,
    BadEntryError,
    Key,
    LeasesUnsupportedError,
    SharedStore,
    StoreError,
    first_line,
)
from rtcompile.lookup import environment as environments
from rtcompile.settings import note
from rtcompile.store.folder import count

FIRST_SECONDS = 1.0  # for the first reply, which includes connecting
_FIRST_CREDIT, _TRIAL_CREDIT, _MOST_CREDIT = 1.0, 0.5, 10.0  # _TRIAL_CREDIT: after a pause
# The fraction of the compilers' time that a process may spend on misses of stores.
_PART_COMPILED = 0.5
_LEAST_PAUSE, _MOST_PAUSE = 1.0, 60.0
_NOT_WRITTEN_SECONDS = 60.0  # for which a store that rejects writes is only read
# If a reply is later than this, other builds wait for it before they send a request: so a store that stops
# responding costs all threads together little more than the time limit of one reply.
_LATE_SECONDS = 0.2
_TICK_SECONDS = 0.02

_HINT = "Builds go on without it; `rtcompile doctor` tries it."
_KEYS = (
    "Do all nodes have the same key in RTCOMPILE_REMOTE_KEY_FILE, and the same "
    "RTCOMPILE_REMOTE_UNSIGNED?"
)

_Request = Callable[[], Any]


class Level:
    """One store, and this process's counts of it. A method returns None if the store does not respond, or is paused."""

    def __init__(
        self, store: SharedStore, keys: Sequence[Key], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.store = store
        self.keys = keys  # the first signs, and all of them verify
        self.counts: dict[str, Any] = Counter[str]()  # those of seconds have fractions
        # Its `waits_for_node`: this thread waits for another node's build, so the time of replies does not count.
        self.this_thread = threading.local()
        self.is_silent = False  # whether it is paused because it did not respond
        self.credit = _FIRST_CREDIT  # seconds for which builds may still wait for it
        self._clock = clock
        self._guard = threading.RLock()
        self._sent: list[float] = []  # when the requests were sent for which builds wait
        self._has_replied = False
        self._counted_until = float("-inf")
        self._resumes_at = self._not_written_until = 0.0
        self._next_pause = _LEAST_PAUSE
        self._has_warned = False
        self._probe: threading.Thread | None = None
        self._idle: list[SimpleQueue[Any]] = []  # the queues of threads without a request

    # --- entries -------------------------------------------------------------------------

    def get(self, kind: str, key: str) -> bytes | None:
        """Return the verified data of an entry that any of the team's keys has signed."""
        for signer in self.keys:
            try:
                entry = self.send(partial(self.store.get, signer.store_key(kind, key)))
                if isinstance(entry, bytes):
                    self.count("bytes_read", len(entry))
                if entry is not None:
                    return signer.open(kind, key, entry)
            except BadEntryError as error:
                self.count("refused")
                self._fail(f"returned an entry that is not used: {kind} {key[:16]}: {error}", _KEYS)
        return None

    def put(
        self, kind: str, key: str, data: bytes, *, new: bool = False, waiting: bool = False
    ) -> bool | None:
        """Write an entry, if `new` only where there is none, and return whether it was written.

        An entry that is too large for every reader is not written. None: the store does not respond, or is paused.
        """
        if len(data) > MOST_BYTES[kind]:
            return False
        signer = self.keys[0]
        sealed, store_key = signer.seal(kind, key, data), signer.store_key(kind, key)

        def write() -> bool:
            if new:
                return self.store.create(store_key, sealed)
            self.store.put(store_key, sealed)
            return True

        written: bool | None = self.send(write, waiting=waiting, writes=True)
        if written:
            self.count("written")
            self.count("bytes_written", len(sealed))
        return written

    # --- requests ------------------------------------------------------------------------

    def send(self, request: _Request, *, waiting: bool = True, writes: bool = False) -> Any:
        """Return the result of a request; None if it failed, or is not sent now."""
        if (writes and not self.writable) or not self._may_send(waiting):
            return None
        begin, problem = self._clock(), ""
        if waiting:
            self._sent.append(begin)
        self.count("requests")
        try:
            if not waiting or (self._has_replied and self.store.limits_time):
                return request()
            return self.limited(request, REPLY_SECONDS if self._has_replied else FIRST_SECONDS)
        except (LeasesUnsupportedError, BadEntryError):
            raise
        except Exception as error:  # noqa: BLE001  # a store's client may raise anything
            problem = first_line(error)
            return None
        finally:
            self._judge(problem, begin, waiting=waiting, writes=writes)

    def limited(self, request: _Request, seconds: float) -> Any:
        """Return the result of a request that is made in another thread; raise `StoreError` if it is late."""
        reply: Future[Any] = Future()
        try:
            queue = self._idle.pop()
        except IndexError:  # the first request, or all threads make one
            queue = SimpleQueue()
            try:
                threading.Thread(target=_make, args=[queue], daemon=True).start()
            except RuntimeError:  # no thread can be started at the process's end
                return request()
        queue.put((request, reply))
        # Time is counted in this thread's ticks: on an overloaded machine there are few, so a quick store does not
        # seem slow.
        was_silent = self.is_silent
        try:
            for _ in range(round(seconds / _TICK_SECONDS)):
                if futures.wait([reply], _TICK_SECONDS).done:
                    return reply.result()
                if self.is_silent and not was_silent:  # another thread got no reply
                    break
        finally:  # also after a Ctrl-C
            if reply.done():
                self._idle.append(queue)
            else:
                queue.put(None)
        raise StoreError(f"no reply in {seconds:.2g} s")

    # --- whether to send -----------------------------------------------------------------

    @property
    def writable(self) -> bool:
        """Whether to write to it now; a full or read-only store can still be read."""
        return not self.is_silent and self._clock() >= self._not_written_until

    def _may_send(self, waiting: bool) -> bool:
        while waiting and not self.is_silent:
            if self._clock() - next(iter(self._sent), float("inf")) <= _LATE_SECONDS:
                break
            time.sleep(_TICK_SECONDS)
        with self._guard:
            is_paused = self._clock() < self._resumes_at
            if not self.is_silent:
                return not (waiting and is_paused)
            if not is_paused and (self._probe is None or not self._probe.is_alive()):
                self._probe = threading.Thread(
                    target=self._try, name="rtcompile-probe", daemon=True
                )
                with suppress(RuntimeError):  # no new threads at the process's end
                    self._probe.start()
            return False

    def _try(self) -> None:
        """Send a test request to a silent store, while builds continue without it."""
        problem = ""
        try:
            self.limited(partial(self.store.get, "probe/none"), FIRST_SECONDS)
        except BadEntryError:
            pass  # it responds
        except Exception as error:  # noqa: BLE001  # a store's client may raise anything
            problem = first_line(error)
        with self._guard:
            if problem:
                self._pause(problem, silent=True)
            else:
                self.is_silent = False
                note(f"shared store {self.store.name} responds again")

    def _judge(self, problem: str, begin: float, *, waiting: bool, writes: bool) -> None:
        """Count what a request cost, and pause the store, with a warning the first time, if it did not respond."""
        with self._guard:
            now = self._clock()
            took = now - begin
            if waiting:
                self._sent.remove(begin)
                if problem or not getattr(self.this_thread, "waits_for_node", False):
                    # Simultaneous waits of several threads count once.
                    cost = min(took, now - self._counted_until)
                    self._counted_until = now
                    self.count("seconds_waited", cost)
                    self.credit -= cost
            if self.is_silent:  # another thread has paused it
                return
            self._has_replied = self._has_replied or not problem
            if problem and (not writes or took >= REPLY_SECONDS / 2):
                self._pause(problem, silent=True)
            elif problem:
                self._not_written_until = now + _NOT_WRITTEN_SECONDS
                self._fail(f"is not written to for a minute: {problem}")

    def _pause(self, why: str, *, silent: bool) -> None:
        seconds, self._next_pause = self._next_pause, min(2 * self._next_pause, _MOST_PAUSE)
        self._resumes_at = self._clock() + seconds
        self.credit = max(self.credit, _TRIAL_CREDIT)
        self.is_silent = silent
        self.count("pauses")
        self._fail(f"is paused for {seconds:.0f} s: {why}")

    # --- what look-ups found -------------------------------------------------------------

    def hit(self, milliseconds: float, waited: float) -> None:
        """Count a look-up that found a build, the milliseconds that its compile took, and the seconds waited."""
        saved = milliseconds / 1e3
        self.count("hits")
        self.count("seconds_saved", saved)
        if saved > waited:
            self._next_pause = _LEAST_PAUSE
        self._earn(saved)

    def miss(self) -> None:
        """Count a look-up that found nothing."""
        self.count("misses", not self.is_silent)
        self._earn(0.0)

    def built(self, milliseconds: float) -> None:
        """Count the compile time of a build that the store did not have, unless it was paused and not queried."""
        if self._clock() >= self._resumes_at:
            self._earn(_PART_COMPILED * milliseconds / 1e3)

    def _earn(self, seconds: float) -> None:
        with self._guard:
            self.credit = min(self.credit + seconds, _MOST_CREDIT)
            if self.credit <= 0 and self._clock() >= self._resumes_at:
                cost, saved = (self.counts[f"seconds_{name}"] for name in ("waited", "saved"))
                self._pause(f"its replies cost {cost:.1f} s and saved {saved:.1f} s", silent=False)

    def count(self, name: str, number: float = 1) -> None:
        """Add to what this process requested, and to the machine's statistics."""
        with self._guard:
            self.counts[name] += number
            count(environments.current().folder, **{f"{name} {self.store.name}": number})

    def _fail(self, what: str, hint: str = _HINT) -> None:
        self.count("failures")
        note(f"shared store {self.store.name} {what}")
        if not self._has_warned:
            self._has_warned = True
            warn(f"RTCOMPILE_REMOTE: {self.store.name} {what.rstrip('.')}. {hint}")


def _make(queue: SimpleQueue[Any]) -> None:
    """Make requests, one after the other, until None is in the queue."""
    while task := queue.get():
        request, reply = task
        try:
            reply.set_result(request())
        except Exception as error:  # noqa: BLE001  # a store's client may raise anything
            reply.set_exception(error)
