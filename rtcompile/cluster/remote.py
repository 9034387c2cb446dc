"""The shared stores, in the order of ``RTCOMPILE_REMOTE``, which are asked after the local cache.

Entries are written in the background, and for a limited time at the end of the process.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from rtcompile.cluster.breaker import PROMPT_SECONDS, Tier
from rtcompile.cluster.envelope import BadEntryError, Envelope, read_key
from rtcompile.cluster.settings import RemoteSettings, open_store
from rtcompile.cluster.stores import LeasesUnsupportedError
from rtcompile.errors import InvalidRequest, RtcompileWarning

LEASE_SECONDS = 10.0
_RENEW_SECONDS = 3.0
_FLUSH_SECONDS = 2.0  # at the process's end
_MOST_HELD_SECONDS = 300.0  # then a lease ends, whatever its holder does
_LEAST_PAUSE, _MOST_PAUSE = 0.02, 0.5
_PART_PAUSED = 0.05  # of a wait so far, until the next question: what waiting may take longer by

_T = TypeVar("_T")


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
            self._ask("renew", LEASE_SECONDS)

    def end(self, shared: bool) -> None:
        """Give it back; unless the build is `shared`, all who wait build at once, not one by one."""
        if self._ended.is_set():
            return
        self._ended.set()
        # In a store that does not answer it ends by itself; one that is full removes, but keeps nothing.
        if shared or not self._ask("renew", LEASE_SECONDS, abandon=True):
            self._ask("release")

    def _ask(self, method: str, *given: float, **named: bool) -> bool:
        """Ask the store while no build waits; say whether it answered."""
        # Where warnings are errors, this one has no caller to reach.
        with suppress(RtcompileWarning):
            ours = (self._key, self._token)
            return bool(self._tier.ask(method, *ours, *given, waiting=False, **named))
        return False


Entry = tuple[str, str, bytes]  # kind, key, data


class Remote:
    """All shared stores of a process."""

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
        self._pending: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._unfinished = 0
        self._progress = threading.Condition()
        self._writer: threading.Thread | None = None

    # --- reading -------------------------------------------------------------------------

    def get(
        self, kind: str, key: str, only: Tier | None = None, *, waiting: bool = True
    ) -> bytes | None:
        """Return the verified bytes that the first store, or only the given one, has; or None."""
        for tier in self.tiers if only is None else [only]:
            entry = tier.ask("get", f"{kind}/{key}", waiting=waiting)
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
        """Write each store's entries in order, in the background; then call `then(all_have_them)`."""

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
        with self._progress:
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
            sealed = self._envelope.seal(kind, key, data)
            took_it = tier.ask("put", f"{kind}/{key}", sealed, waiting=False)
            with self._progress:
                self._progress.notify_all()
            if took_it is None:
                return False
            tier.written += 1
        return True

    def _write(self) -> None:
        while True:
            try:
                self._pending.get()()
            except Exception as error:  # the next build is pushed whatever became of this one
                text = f"RTCOMPILE_REMOTE: a build could not be pushed: {error!r}."
                with suppress(RtcompileWarning):  # an error where the caller's filter says so
                    warnings.warn(text, RtcompileWarning, stacklevel=2)
            finally:
                with self._progress:
                    self._unfinished -= 1
                    self._progress.notify_all()

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until everything is written; return whether it is.

        At the process's end, where no `seconds` are given, what is slow gets the time that builds
        would have waited for it.
        """
        deadline = time.monotonic() + (_FLUSH_SECONDS if seconds is None else seconds)
        slow_left = max(tier.left for tier in self.tiers) if seconds is None else seconds
        with self._progress:
            while self._unfinished:
                begin = time.monotonic()
                most = min(deadline - begin, slow_left)
                if most <= 0 or not self._progress.wait(most):
                    return not self._unfinished
                took = time.monotonic() - begin
                slow_left -= took if took > PROMPT_SECONDS else 0.0
        return True

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
            begin, pause = time.monotonic(), _LEAST_PAUSE
            try:
                while (claim := tier.ask("acquire", place, token, LEASE_SECONDS)) == "another's":
                    tier.this_thread.waits_anyway = True
                    found = look()
                    if found is not None or time.monotonic() > deadline:
                        return found
                    # The random factor spreads the questions of many waiting nodes; the pause grows
                    # with time.
                    time.sleep(pause * random.uniform(0.75, 1.25))
                    pause = min(max(pause, (time.monotonic() - begin) * _PART_PAUSED), _MOST_PAUSE)
            except LeasesUnsupportedError as error:
                tier.problem = str(error)
                continue
            finally:
                tier.this_thread.waits_anyway = False
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


# --- the process's own ---------------------------------------------------------------------------

_opened: dict[tuple[tuple[str, str], ...], Remote | None] = {}  # by the variables
_guard = threading.Lock()


def remote() -> Remote | None:
    """Return the stores that the environment names, or None; a bad setting costs only a warning."""
    key = tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith(_VARIABLES)))
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
