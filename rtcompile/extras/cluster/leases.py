"""One build in the whole cluster: the node that holds a signed lease builds, and the others wait.

A lease lives for five seconds after its last renewal, and is never removed: it ends with the process that renewed it,
however that ends. Nobody else can have built a kernel whose lease was free three seconds after it was looked for. A
waiting process trusts a lease as long as it sees renewals, by its own clock. After two leases that were not renewed,
a process stops waiting for any.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from rtcompile.errors import RtcompileWarning
from rtcompile.extras.cluster.entries import Envelope
from rtcompile.extras.cluster.level import Level
from rtcompile.store.shared import BadEntryError, Busy, LeasesUnsupportedError, note

LEASE_SECONDS = 5.0
RENEW_SECONDS = 1.0
_SURE_SECONDS = 3.0  # between a look-up and a lease
_MOST_HELD_SECONDS = 300.0  # after which a lease ends in any case
# Seconds for which an unrenewed lease is trusted: at first, after one that was not renewed, after two.
_TRUSTED_SECONDS = (LEASE_SECONDS, 4.0, 0.0)
_DEAD_SECONDS = 60.0  # since the last renewal, by the nodes' clocks, which may differ
_REPORTED_SECONDS = 2.0
_MOST_TRIES = 5
_LEAST_PAUSE, _MOST_PAUSE = 0.02, 0.5
# A waiting node sleeps for this fraction of its wait so far, which limits the delay.
_PART_PAUSED = 0.05

_T = TypeVar("_T")


def _machine() -> str:
    """Return what identifies this machine since it started, and the processes that see each other; "" if unknown."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.stat('/proc/self/ns/pid').st_ino}"
    return ""


class Lease:
    """The right to build for the whole cluster, and what was seen of another node's while waiting for it."""

    def __init__(self, level: Level, envelope: Envelope, key: str, program: str) -> None:
        self.level, self.key = level, key
        self.store_key = envelope.store_key("lease", key)
        self._envelope = envelope
        self.theirs: bytes | None = None
        self.changed = 0.0  # when theirs was seen for the first time
        self.looked_at = float("-inf")  # when the build was last looked for
        self._fields: dict[str, Any] = {
            "token": secrets.token_hex(16),
            "holder": socket.gethostname(),
            "process": os.getpid(),
            "machine": _machine(),
            "program": program,
        }
        self._until = time.monotonic() + _MOST_HELD_SECONDS
        self.data = self._sealed()

    def _sealed(self, *, is_abandoned: bool = False) -> bytes:
        fields = {**self._fields, "renewed": time.time(), "abandoned": is_abandoned}
        return self._envelope.seal("lease", self.key, json.dumps(fields).encode())

    def renew(self, *, is_abandoned: bool = False) -> bool:
        """Write it again, while no build waits; return whether it is still held."""
        data = self._sealed(is_abandoned=is_abandoned)
        # If warnings are errors, the writing thread has no caller that could catch one.
        with suppress(RtcompileWarning):
            if self.level.replace(self.store_key, self.data, data, LEASE_SECONDS):
                self.data = data
                return time.monotonic() < self._until
        return False


class Leases:
    """The leases that a process holds and waits for; tests pass their own clocks."""

    def __init__(
        self,
        envelope: Envelope,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._envelope, self._now, self._sleep = envelope, now, sleep
        self.held: set[Lease] = set()  # changed by the thread that writes to the stores
        self.stalls = 0  # unrenewed leases that this process has met

    def renew(self) -> None:
        """Renew the leases that are held."""
        for lease in [*self.held]:
            if not lease.renew():
                self.held.discard(lease)

    def end(self, lease: Lease, shared: bool) -> None:
        """Let a lease end; unless its build is `shared`, all waiting processes build at once, not one by one."""
        self.held.discard(lease)
        if not shared:
            lease.renew(is_abandoned=True)

    def take(
        self,
        levels: Sequence[Level],
        key: str,
        look: Callable[[], _T | None],
        seconds: float | None = None,
        program: str = "",
        waits: bool = True,
        looked_at: float = float("-inf"),
    ) -> _T | Lease | None:
        """Return a lease, or what `look` finds that another node built; None if the build is not to be waited for."""
        # Raises Busy where another node builds, unless the caller `waits`.
        most = _MOST_HELD_SECONDS if seconds is None else seconds
        for level in levels:
            if hasattr(level.store, "create"):
                lease = Lease(level, self._envelope, key, program)
                lease.looked_at = looked_at
                try:
                    return self._take(lease, look, most, waits)
                except LeasesUnsupportedError as error:
                    level.problem = str(error)
                finally:
                    level.here.waits_for_node = False
        return None

    def _take(
        self, lease: Lease, look: Callable[[], _T | None], seconds: float, waits: bool
    ) -> _T | Lease | None:
        level, begin = lease.level, self._now()
        pause, is_reported = _LEAST_PAUSE, False
        while isinstance(taken := self._try(lease), dict):
            level.here.waits_for_node = True
            lease.looked_at = time.monotonic()
            found = look()
            if found is not None or self._now() > begin + seconds:
                return found
            if not waits:
                raise Busy
            waited = self._now() - begin
            if waited >= _REPORTED_SECONDS and not is_reported:
                is_reported = True
                note(f"waiting for {_holder(taken)} since {waited:.0f} s")
            # The random factor spreads the requests of many waiting nodes.
            self._sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311
            pause = min(max(pause, waited * _PART_PAUSED), _MOST_PAUSE)
        if not taken:
            return None
        found = None if time.monotonic() - lease.looked_at < _SURE_SECONDS else look()
        if found is not None:
            return found
        self.held.add(lease)
        return lease

    def _try(self, lease: Lease) -> dict[str, Any] | bool:
        """Take a lease that nobody holds; return whether that worked, or the fields of another node's lease."""
        level = lease.level
        for _ in range(_MOST_TRIES):
            held = self._still_there(lease) if lease.theirs else None
            if held is None:
                created = level.create(lease.store_key, lease.data, LEASE_SECONDS)
                if created is not False:  # None: the store does not respond
                    return bool(created)
                held = level.get(lease.store_key)
            if held is None:
                continue  # it ended just now
            if held != lease.theirs:
                lease.theirs, lease.changed = held, self._now()
            fields, unchanged = self._opened(lease.key, held), self._now() - lease.changed
            if fields and time.time() - fields["renewed"] < _DEAD_SECONDS:
                if fields.get("abandoned"):
                    return False
                if unchanged < self._trusted_seconds(fields):
                    return fields
            self._stalled(fields, unchanged)
            replaced = level.replace(lease.store_key, held, lease.data, LEASE_SECONDS, waiting=True)
            if replaced is not False:
                lease.looked_at = float("-inf")  # its holder may have written its build just now
                return bool(replaced)
        return False

    def _still_there(self, lease: Lease) -> Any:
        """Return another node's lease, which in a folder is missing for a moment while it is renewed."""
        held = lease.level.get(lease.store_key)
        if held is None:
            self._sleep(_LEAST_PAUSE)
            held = lease.level.get(lease.store_key)
        return held

    def _opened(self, key: str, held: Any) -> dict[str, Any]:
        """Return a lease's fields, or nothing if its signature is not valid."""
        for signer in self._envelope.keys:
            with suppress(BadEntryError, ValueError):
                fields = json.loads(self._envelope.open("lease", key, held, signer))
                if isinstance(fields, dict) and isinstance(fields.get("renewed"), float):
                    return fields
        return {}

    def _trusted_seconds(self, fields: dict[str, Any]) -> float:
        """Return for how many seconds a lease is trusted after it was last seen to change."""
        is_here = fields.get("machine") and fields["machine"] == _machine()
        if is_here and not os.path.exists(f"/proc/{fields.get('process')}"):
            return 0.0  # its process has ended
        return _TRUSTED_SECONDS[min(self.stalls, len(_TRUSTED_SECONDS) - 1)]

    def _stalled(self, fields: dict[str, Any], seconds: float) -> None:
        if fields and seconds > 2 * RENEW_SECONDS:
            self.stalls += 1
            note(f"{_holder(fields)}, did not renew its lease for {seconds:.0f} s: built here")


def _holder(fields: dict[str, Any]) -> str:
    """Return in words who holds a lease."""
    program = fields.get("program") or "the same"
    return f"{fields.get('holder')}:{fields.get('process')}, which compiles {program}"
