"""The shared stores, in the order of ``RTCOMPILE_REMOTE``, and when one is left alone.

A store that fails causes one warning. The time that a process waits for its slow answers is limited to
a second in all, whichever of the threads wait, and at the end of the process too.

Entries are written in the background, and for a limited time at the end of the process.
"""

from __future__ import annotations

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
from typing import Any, TypeVar

from rtcompile.errors import InvalidRequest, RtcompileWarning
from rtcompile.store.folder import at_end
from rtcompile.store.shared import (
    ANSWER_SECONDS,
    MOST_BYTES,
    BadEntryError,
    Envelope,
    LeasesUnsupportedError,
    RemoteSettings,
    SharedStore,
    first_line,
    open_store,
    read_key,
)

# --- One shared store, and when it is left alone: a circuit breaker -------------------------------

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
    """Return what `ask` returns in another thread, the seconds it took, and the text of its error.

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
        except Exception as error:  # noqa: BLE001  # the thread that waits raises it
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
        if isinstance(error, LeasesUnsupportedError):
            raise error
        return None, took, first_line(error)
    return answers[0], took, ""


# --- The shared stores ----------------------------------------------------------------------------

LEASE_SECONDS = 10.0
_RENEW_SECONDS = 3.0
_FLUSH_SECONDS = 2.0  # at the process's end
_MOST_HELD_SECONDS = 300.0  # then a lease ends, whatever its holder does
_LEAST_PAUSE, _MOST_PAUSE = 0.02, 0.5
_PART_PAUSED = 0.05  # of a wait so far, until the next question: what waiting may take longer by


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
                at_end(self.flush)
        self._pending.put(task)

    def put(self, tier: Tier, entries: Sequence[Entry]) -> bool:
        """Write entries to a store now; say whether it took them."""
        for kind, key, data in entries:
            if len(data) > MOST_BYTES[kind]:
                return False  # every reader would refuse it
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
            except Exception as error:  # noqa: BLE001  # the next build is pushed whatever became of this one
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
            if not hasattr(tier.store, "acquire"):  # it has no leases
                continue
            begin, pause = time.monotonic(), _LEAST_PAUSE
            try:
                while (claim := tier.ask("acquire", place, token, LEASE_SECONDS)) == "another's":
                    tier.this_thread.waits_anyway = True
                    found = look()
                    if found is not None or time.monotonic() > deadline:
                        return found
                    # The random factor spreads the questions of many waiting nodes; the pause grows
                    # with time.
                    time.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311  # no secret
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
