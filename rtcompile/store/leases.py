"""One build in the whole cluster: the node that holds a signed lease builds, and the others wait.

Who waits believes a lease for as long as it sees it renewed, by its own clock: a lease that is forged,
stuck, or whose holder is gone costs ten seconds at most, and a process that met two of them waits for
none any more.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rtcompile import logs
from rtcompile.errors import RtcompileWarning
from rtcompile.store.ending import Helper
from rtcompile.store.locks import Busy as Busy
from rtcompile.store.shared import BadEntryError, LeasesUnsupportedError

if TYPE_CHECKING:
    from rtcompile.store.envelope import Envelope
    from rtcompile.store.tier import Tier

LEASE_SECONDS = 10.0  # after which a store may forget a lease that was not renewed
_RENEW_SECONDS = 2.5
_MOST_HELD_SECONDS = 300.0  # then a lease ends, whatever its holder does
# Seconds for which an unrenewed lease is trusted: at first, after one lease that expired so, after two.
_BELIEVED_SECONDS = (10.0, 4.0, 0.0)
_DEAD_SECONDS = 60.0  # since the last renewal by the nodes' clocks, which may differ
_REPORTED_SECONDS = 2.0
_MOST_TAKEOVERS = 4
_LEAST_PAUSE, _MOST_PAUSE = 0.02, 0.5
_PART_PAUSED = (
    0.05  # a waiting node pauses for this part of its wait so far, which bounds the delay
)

_T = TypeVar("_T")


class Clock(NamedTuple):
    """How time passes; tests have their own."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Lease:
    """The right to make a build for the whole cluster, held and renewed until it is given back."""

    def __init__(
        self, tier: Tier, envelope: Envelope, key: str, program: str, helper: Helper | None = None
    ) -> None:
        self.tier = tier
        self._helper = helper
        self.place = envelope.place("lease", key)
        self._envelope = envelope
        self.key = key
        self._fields: dict[str, Any] = {
            "token": secrets.token_hex(16),
            "holder": f"{socket.gethostname()}:{os.getpid()}",
            "program": program,
        }
        self.data = self.written(is_abandoned=False)
        self._made_at = time.monotonic()
        self._ended = threading.Event()
        self._guard = threading.Lock()

    @property
    def age(self) -> float:
        """The seconds since the process first requested it."""
        return time.monotonic() - self._made_at

    def written(self, *, is_abandoned: bool) -> bytes:
        """Return the bytes to store for the lease now."""
        fields = {**self._fields, "renewed": time.time(), "abandoned": is_abandoned}
        return self._envelope.seal("lease", self.key, json.dumps(fields).encode())

    def start(self) -> Lease:
        """Renew it from now on, and have it given back if this process ends unexpectedly."""
        if self._helper is not None:
            self._helper.hold(self.place, self._fields["token"])
        threading.Thread(target=self._renew, name="rtcompile-lease", daemon=True).start()
        return self

    def _renew(self) -> None:
        until = time.monotonic() + _MOST_HELD_SECONDS
        while not self._ended.wait(_RENEW_SECONDS) and time.monotonic() < until:
            with self._guard:
                if not self._ended.is_set():
                    self._replace(self.written(is_abandoned=False))

    def end(self, shared: bool) -> None:
        """Give it back; unless the build is `shared`, all waiting processes build at once, not one by one."""
        with self._guard:
            if self._ended.is_set():
                return
            self._ended.set()
            # In a store that does not answer, the lease expires by itself; a full store can delete but not write.
            if shared or not self._replace(self.written(is_abandoned=True)):
                self._replace(None)
            if self._helper is not None:
                self._helper.release(self.place, self._fields["token"])

    def _replace(self, data: bytes | None) -> bool:
        """Put other data in the lease's place, while no build waits; return whether it was written."""
        # If warnings are errors, this thread has no caller that could catch one.
        with suppress(RtcompileWarning):
            given = (self.place, self.data, data, LEASE_SECONDS)
            if self.tier.ask("replace", *given, waiting=False):
                self.data = data or b""
                return True
        return False


class _Sight:
    """What a process that waits has seen of a lease, by its own clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._begin = now, now()
        self._held, self._since = b"", self._begin
        self._fields: dict[str, Any] = {}
        self._is_reported = False
        self.is_over = False  # whether there is nobody to wait for, and no lease can be obtained

    @property
    def waited(self) -> float:
        """The seconds since the process began to wait."""
        return self._now() - self._begin

    @property
    def unchanged(self) -> float:
        """The seconds since the lease was last seen to change."""
        return self._now() - self._since

    def see(self, held: bytes, fields: dict[str, Any]) -> None:
        """Record the lease's current state."""
        self._fields = fields
        if held != self._held:
            self._held, self._since = held, self._now()

    def report(self) -> None:
        """Log once who is waited for, if that takes long."""
        if self.waited >= _REPORTED_SECONDS and not self._is_reported:
            self._is_reported = True
            who, what = self._fields["holder"], self._fields["program"]
            logs.note(f"waiting for {who}, which compiles {what} since {self.waited:.0f} s")


class Waiting:
    """How the builds of one process wait for those of other nodes."""

    def __init__(self, envelope: Envelope, clock: Clock | None = None) -> None:
        self._envelope = envelope
        self.helper = Helper()
        self._clock = clock or Clock()
        self.stalls = 0  # leases that were not renewed, in the life of this process

    def take(
        self,
        tier: Tier,
        key: str,
        look: Callable[[], _T | None],
        *,
        program: str = "",
        seconds: float | None = None,
        waits: bool = True,
    ) -> _T | Lease | None:
        """Return a lease to build under, or what `look` finds that another node built meanwhile.

        None: the store gives no leases, who had it shares no build, or takes longer than `seconds`.
        Raises Busy where another node builds, unless the caller `waits`.
        """
        now = self._clock.now
        deadline = now() + (_MOST_HELD_SECONDS if seconds is None else seconds)
        lease = Lease(tier, self._envelope, key, program, self.helper)
        sight = _Sight(now)
        pause = _LEAST_PAUSE
        try:
            while not self._taken(tier, lease, sight):
                tier.this_thread.waits_anyway = True
                if sight.is_over:
                    return None
                found = look()
                if found is not None or now() > deadline:
                    return found
                if not waits:
                    raise Busy
                sight.report()
                # The random factor spreads the requests of many waiting nodes; the pause grows
                # with time.
                self._clock.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311
                tier.this_thread.waited = tier.waited_here() + pause
                pause = min(max(pause, sight.waited * _PART_PAUSED), _MOST_PAUSE)
        finally:
            tier.this_thread.waits_anyway = False
        return lease.start()

    def _taken(self, tier: Tier, lease: Lease, sight: _Sight) -> bool:
        """Take a lease that is free or no longer trusted; record in `sight` who has it."""
        for _ in range(_MOST_TAKEOVERS):
            created = tier.ask("create", lease.place, lease.data, LEASE_SECONDS)
            if created:
                return True
            held = tier.ask("get", lease.place) if created is not None else None
            if held is None:
                if created is None or not tier.writable:  # the store does not answer
                    break
                continue  # it ended just now
            fields = self._opened(lease.key, held)
            sight.see(held, fields)
            if fields.get("abandoned"):
                break
            if sight.unchanged < self._believed(fields):
                return False
            self._stalled(fields, sight.unchanged)
            if tier.ask("replace", lease.place, held, lease.data, LEASE_SECONDS):
                return True
        sight.is_over = True
        return False

    def _opened(self, key: str, held: bytes) -> dict[str, Any]:
        """Return a lease's fields; none unless its signature is valid."""
        for signer in self._envelope.keys:
            with suppress(BadEntryError, ValueError):
                fields = json.loads(self._envelope.open("lease", key, held, signer))
                if isinstance(fields, dict) and isinstance(fields.get("renewed"), float):
                    return {"holder": "another node", "program": "the same", **fields}
        return {}

    def _believed(self, fields: dict[str, Any]) -> float:
        """Return for how many seconds a lease is trusted after it was last seen to change."""
        if not fields or time.time() - fields["renewed"] > _DEAD_SECONDS:
            return 0.0
        return _BELIEVED_SECONDS[min(self.stalls, len(_BELIEVED_SECONDS) - 1)]

    def _stalled(self, fields: dict[str, Any], seconds: float) -> None:
        if seconds > 0:
            self.stalls += 1
            logs.note(
                f"{fields['holder']} did not renew its lease of {fields['program']} for "
                f"{seconds:.0f} s: it is built here"
            )


def of_levels(tiers: list[Tier], take: Callable[[Tier], _T | Lease | None]) -> _T | Lease | None:
    """Return what `take` returns for the first store that gives leases; None if none does."""
    for tier in tiers:
        if not hasattr(tier.store, "create"):
            continue
        try:
            return take(tier)
        except LeasesUnsupportedError as error:
            tier.problem = str(error)
    return None


def ending(lease: Lease | None) -> Callable[[bool], None]:
    """Return the function that gives a lease back, if there is one."""
    return nothing if lease is None else lease.end


def nothing(shared: bool) -> None:
    """Do nothing, because there is no lease to give back."""
