"""The shared stores, in the order of ``RTCOMPILE_REMOTE``, which are asked after the local cache.

A store that fails causes one warning. The time that a process waits for slow answers of a store is
limited to one second in all, after which the store is not used for a while. Entries are written in
the background, and for a limited time at the end of the process.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import queue
import random
import secrets
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from rtcompile.cluster.addresses import open_store
from rtcompile.cluster.envelope import BadEntryError, Envelope, read_key
from rtcompile.cluster.patience import own_seconds
from rtcompile.cluster.settings import RemoteSettings
from rtcompile.cluster.stores import Claim, LeasesUnsupportedError, SharedStore, StoreError
from rtcompile.errors import InvalidRequest, RtcompileWarning

__all__ = ["Entry", "Lease", "Remote", "Tier", "remote"]

LEASE_SECONDS = 10.0
_RENEW_SECONDS = 3.0
_CLOSED_SECONDS = 60.0  # for which a store that failed is not asked
_MOST_WAITED_SECONDS = 1.0  # for slow answers of one store, in the life of a process
_PROMPT_SECONDS = 0.1  # an answer in this time is not slow
_FLUSH_SECONDS = 2.0  # at the process's end
_MOST_HELD_SECONDS = 300.0  # then a lease ends, whatever its holder does
_LEAST_PAUSE, _MOST_PAUSE = 0.02, 0.5
_PART_PAUSED = 0.05  # of a wait so far, until the next question: what waiting may take longer by

_T = TypeVar("_T")


class Tier:
    """One store, and the time that the process has waited for it.

    Attributes
    ----------
    hits, misses, written, failures : int
        Counts of this process.
    problem : str
        Why it is not used now, ``""`` if it is.
    """

    def __init__(self, store: SharedStore) -> None:
        self.store = store
        self.hits = self.misses = self.written = self.failures = 0
        self.problem = ""
        self._waited = 0.0
        self._waits_anyway = threading.local()
        self._closed_until = self._not_written_until = 0.0
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
        writing: bool = False,
    ) -> _T | None:
        """Return the store's answer, None where it gives none.

        Parameters
        ----------
        question : callable
            Asks the store.
        waiting : bool
            Whether a build waits for the answer.
        writing : bool
            Whether it writes.
        """
        if not (self.writable if writing else self.open):
            return None
        begin, ours = time.monotonic(), own_seconds()
        answer, problem = None, ""
        try:
            answer = question(self.store)
        except LeasesUnsupportedError:
            raise
        except StoreError as error:
            problem = str(error)
        # What this thread computed, or waited for a processor, is not the store's fault.
        took = max(0.0, time.monotonic() - begin - (own_seconds() - ours))
        slow = waiting and took > _PROMPT_SECONDS
        if slow and not problem and getattr(self._waits_anyway, "yes", False):
            slow = False
        self._waited += took if slow else 0.0
        # True if another answer that takes as long would exceed the limit.
        too_slow = slow and self._waited + took > _MOST_WAITED_SECONDS
        if too_slow or (problem and (not writing or took > _PROMPT_SECONDS)):
            until = float("inf") if too_slow else time.monotonic() + _CLOSED_SECONDS
            self._closed_until = until
            how = f"left alone {'from now on' if too_slow else 'for a minute'}"
            self._fail(problem or f"an answer took {took:.1f} s", how)
        elif problem:
            self._not_written_until = time.monotonic() + _CLOSED_SECONDS
            self._fail(problem, "not written to for a minute")
        return answer

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


class Lease:
    """The right to make a build for the whole cluster, held and renewed until it is given back."""

    def __init__(self, tier: Tier, key: str, token: str) -> None:
        self._tier = tier
        self._key = key
        self._token = token
        self._ended = threading.Event()
        threading.Thread(target=self._renew, name="rtcompile-lease", daemon=True).start()

    def _renew(self) -> None:
        until = time.monotonic() + _MOST_HELD_SECONDS
        while not self._ended.wait(_RENEW_SECONDS) and time.monotonic() < until:
            # Where warnings are errors, this one has no caller to be told.
            with suppress(RtcompileWarning):
                self._tier.ask(
                    lambda store: store.renew(self._key, self._token, LEASE_SECONDS),
                    waiting=False,
                    writing=True,
                )

    def end(self, shared: bool) -> None:
        """Give it back, and say whether who waits for the build finds it in the store.

        If not, all who wait build at once. One after the other would take, and wait for, this lease
        otherwise.
        """
        if self._ended.is_set():
            return
        self._ended.set()
        store = self._tier.store
        with suppress(StoreError):  # then it ends by itself
            if not shared and self._tier.open:
                with suppress(StoreError):  # a full store removes, but keeps nothing
                    store.abandon(self._key, self._token, LEASE_SECONDS)
                    return
            if self._tier.open:
                store.release(self._key, self._token)


Entry = tuple[str, str, bytes]  # kind, key, data


class Remote:
    """All shared stores of a process.

    Parameters
    ----------
    settings : RemoteSettings
        The stores, and what is done with them.

    Raises
    ------
    InvalidRequest
        An address that cannot be used, a client that is not installed, or a key file that others
        may read; the message names the setting.
    """

    def __init__(self, settings: RemoteSettings) -> None:
        if importlib.util.find_spec("zstandard") is None:
            raise InvalidRequest(
                "RTCOMPILE_REMOTE: the package zstandard is not installed; `pip install zstandard`"
            )
        key = read_key(settings.key_file) if settings.key_file else None
        self._envelope = Envelope(key)
        self.writes = settings.mode == "rw"
        self._least_seconds = settings.min_seconds
        self.tiers = [Tier(open_store(address, settings)) for address in settings.addresses]
        self._pending: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._unfinished = 0
        self._idle = threading.Condition()
        self._writer: threading.Thread | None = None

    # --- reading -------------------------------------------------------------------------

    def get(self, kind: str, key: str, only: Tier | None = None) -> bytes | None:
        """Return what the first store has under this key and verifies; None if none has."""
        place = f"{kind}/{key}"
        for tier in self.tiers if only is None else [only]:
            entry = tier.ask(lambda store: store.get(place))
            if entry is None:
                tier.misses += tier.open
                continue
            try:
                data = self._envelope.open(kind, key, entry)
            except BadEntryError as error:
                tier.refused(f"{kind} {key[:16]}: {error}")
                continue
            tier.hits += 1
            return data
        return None

    # --- writing -------------------------------------------------------------------------

    def worth(self, milliseconds: float) -> bool:
        """Whether a build that took so long is to be pushed."""
        return self.writes and milliseconds / 1000 >= self._least_seconds

    def push(
        self,
        entries: Callable[[Tier], Sequence[Entry]],
        then: Callable[[bool], None],
        tiers: Sequence[Tier] | None = None,
    ) -> None:
        """Keep entries in every store, or in some, in the background; then call `then`.

        Parameters
        ----------
        entries : callable
            Returns what one store is to hold, in the order in which it is written.
        then : callable
            Called once all is written, or could not be, with whether all of these stores have it.
        tiers : sequence of Tier, optional
            The stores.
        """

        def write() -> None:
            kept = []
            try:
                for tier in self.tiers if tiers is None else tiers:
                    kept.append(tier.writable and self.put(tier, entries(tier)))
            finally:
                then(bool(kept) and all(kept))

        self.later(write)

    def later(self, task: Callable[[], None]) -> None:
        """Do something in the background, in the order in which it was asked for."""
        with self._idle:
            self._unfinished += 1
            if self._writer is None:
                self._writer = threading.Thread(
                    target=self._write, name="rtcompile-push", daemon=True
                )
                self._writer.start()
                atexit.register(self.flush)
        self._pending.put(task)

    def put(self, tier: Tier, entries: Sequence[Entry]) -> bool:
        """Write entries to a store now; say whether it took them."""
        for kind, key, data in entries:
            place, sealed = f"{kind}/{key}", self._envelope.seal(kind, key, data)
            if tier.ask(_putting(place, sealed), waiting=False, writing=True) is None:
                return False
            tier.written += 1
        return True

    def _write(self) -> None:
        while (task := self._pending.get()) is not None:
            try:
                task()
            except Exception as error:  # the next build is pushed whatever became of this one
                text = f"RTCOMPILE_REMOTE: a build could not be pushed: {error!r}."
                with suppress(RtcompileWarning):  # an error where the caller's filter says so
                    warnings.warn(text, RtcompileWarning, stacklevel=2)
            finally:
                with self._idle:
                    self._unfinished -= 1
                    self._idle.notify_all()

    def flush(self, seconds: float = _FLUSH_SECONDS) -> bool:
        """Wait until everything is written, up to a time limit; return whether it is."""
        with self._idle:
            return self._idle.wait_for(lambda: self._unfinished == 0, seconds)

    # --- one build in the whole cluster ----------------------------------------------------

    def lease(
        self, key: str, look: Callable[[], _T | None], seconds: float | None = None
    ) -> _T | Lease | None:
        """Return a lease to build under, or what `look` finds that another node built meanwhile.

        None: no store gives leases, the node that had it does not share what it built, or takes
        longer than `seconds`; then the build is made here too.
        """
        token = secrets.token_hex(16)
        place = f"lease/{key}"
        deadline = time.monotonic() + (_MOST_HELD_SECONDS if seconds is None else seconds)
        for tier in self.tiers if self.writes else []:
            try:
                claim = tier.ask(_acquiring(place, token), writing=True)
                if claim == "another's":
                    with tier.waiting_anyway():
                        claim, found = self._wait(tier, _acquiring(place, token), look, deadline)
                    if found is not None or claim == "another's":
                        return found
            except LeasesUnsupportedError as error:
                tier.problem = str(error)
                continue
            if claim == "abandoned":
                return None
            if claim == "ours":
                # If it was free because it was released just now, the build is in the store.
                lease = Lease(tier, place, token)
                found = look()
                if found is None:
                    return lease
                self.later(partial(lease.end, True))
                return found
        return None

    def _wait(
        self,
        tier: Tier,
        acquire: Callable[[SharedStore], Claim],
        look: Callable[[], _T | None],
        deadline: float,
    ) -> tuple[Claim | None, _T | None]:
        """Wait until a lease is no more another's, `look` finds the build, or it is too late."""
        begin = time.monotonic()
        pause = _LEAST_PAUSE
        while True:
            found = look()
            if found is not None or time.monotonic() > deadline:
                return "another's", found
            # The random factor spreads the questions of many waiting nodes; the pause grows with
            # time.
            time.sleep(pause * random.uniform(0.75, 1.25))
            pause = min(max(pause, (time.monotonic() - begin) * _PART_PAUSED), _MOST_PAUSE)
            claim = tier.ask(acquire, writing=True)
            if claim != "another's":
                return claim, None


def _acquiring(place: str, token: str) -> Callable[[SharedStore], Claim]:
    return lambda store: store.acquire(place, token, LEASE_SECONDS)


def _putting(place: str, sealed: bytes) -> Callable[[SharedStore], bool]:
    def put(store: SharedStore) -> bool:
        store.put(place, sealed)
        return True

    return put


# --- the process's own
# -----------------------------------------------------------------------------

_opened: dict[tuple[int, tuple[object, ...]], Remote | None] = {}
_guard = threading.Lock()


def remote() -> Remote | None:
    """Return the stores that the environment names, the same ones each time; None if it names none.

    A setting that cannot be used costs one warning that says what to change, and no build.
    """
    said = tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith(_VARIABLES)))
    key = (os.getpid(), said)
    with _guard:
        if key not in _opened:
            try:
                settings = RemoteSettings.from_environ()
                if settings.shares_nothing:
                    warnings.warn(f"{settings.shares_nothing}.", RtcompileWarning, stacklevel=2)
                _opened[key] = Remote(settings) if settings.addresses else None
            except InvalidRequest as error:
                warnings.warn(f"{error}. Builds go on without it.", RtcompileWarning, stacklevel=2)
                _opened[key] = None
        return _opened[key]


_VARIABLES = ("RTCOMPILE_REMOTE", "RTCOMPILE_CACHE_SHARED")


def _after_fork() -> None:
    global _guard
    _guard = threading.Lock()
    _opened.clear()


os.register_at_fork(after_in_child=_after_fork)
