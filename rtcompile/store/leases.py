"""One build in the whole cluster: the node that holds a signed lease builds, and the others wait.

A waiting process trusts a lease as long as it sees renewals, by its own clock. A lease that is forged, stuck, or
without a living holder costs ten seconds at most, and after two such leases a process stops waiting for any. A
small shell releases the leases of a process that ended by a signal, `os._exit` or a crash.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from rtcompile import logs
from rtcompile.errors import RtcompileWarning
from rtcompile.store.locks import Busy as Busy
from rtcompile.store.shared import BadEntryError, LeasesUnsupportedError

if TYPE_CHECKING:
    from rtcompile.store.remote import Tier
    from rtcompile.store.shared import Envelope

LEASE_SECONDS = 10.0  # after which a store may drop a lease that was not renewed
_RENEW_SECONDS = 2.5
_MOST_HELD_SECONDS = 300.0  # after which a lease ends in any case
# Seconds for which an unrenewed lease is trusted: at first, after one expired lease, after two.
_BELIEVED_SECONDS = (10.0, 4.0, 0.0)
_DEAD_SECONDS = 60.0  # since the last renewal, by the nodes' clocks, which may differ
_SURE_SECONDS = 0.8  # between a look-up and a lease
_REPORTED_SECONDS = 2.0
_MOST_TAKEOVERS = 4
_LEAST_PAUSE, _MOST_PAUSE = 0.02, 0.5
# A waiting node sleeps for this fraction of its wait so far, which limits the delay.
_PART_PAUSED = 0.05

_T = TypeVar("_T")


class Lease:
    """The right to build for the whole cluster, renewed until it is released."""

    def __init__(
        self, tier: Tier, envelope: Envelope, key: str, program: str, helper: Helper | None = None
    ) -> None:
        self.tier = tier
        self._helper = helper
        self.store_key = envelope.store_key("lease", key)
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
    def is_first(self) -> bool:
        """Whether no other node can have built since the last look-up, so another look-up is unnecessary."""
        # In such a store a lease remains for a second after its build.
        asks_seldom = getattr(self.tier.store, "asks_seldom", False)
        return asks_seldom and time.monotonic() - self._made_at < _SURE_SECONDS

    def written(self, *, is_abandoned: bool) -> bytes:
        """Return the bytes to store for the lease now."""
        fields = {**self._fields, "renewed": time.time(), "abandoned": is_abandoned}
        return self._envelope.seal("lease", self.key, json.dumps(fields).encode())

    def start(self) -> Lease:
        """Renew it from now on, and let the helper release it if this process ends unexpectedly."""
        self._note(is_held=True)
        threading.Thread(target=self._renew, name="rtcompile-lease", daemon=True).start()
        return self

    def _note(self, *, is_held: bool) -> None:
        if self._helper is not None:
            self._helper.note(f"{self.store_key} {self._fields['token']}\n", is_held=is_held)

    def _renew(self) -> None:
        until = time.monotonic() + _MOST_HELD_SECONDS
        while not self._ended.wait(_RENEW_SECONDS) and time.monotonic() < until:
            with self._guard:
                if not self._ended.is_set():
                    self._replace(self.written(is_abandoned=False))

    def end(self, shared: bool) -> None:
        """Release it; unless the build is `shared`, all waiting processes then build at once, not one by one."""
        with self._guard:
            if self._ended.is_set():
                return
            self._ended.set()
            # In a store that does not respond, the lease expires; a full store can delete but not write.
            if shared or not self._replace(self.written(is_abandoned=True)):
                self._replace(None)
            self._note(is_held=False)

    def _replace(self, data: bytes | None) -> bool:
        """Replace the lease's data, while no build waits; return whether it was written."""
        # If warnings are errors, this thread has no caller that could catch one.
        with suppress(RtcompileWarning):
            given = (self.store_key, self.data, data, LEASE_SECONDS)
            if self.tier.query("replace", *given, waiting=False):
                self.data = data or b""
                return True
        return False


class Waiting:
    """Lets the builds of one process wait for other nodes' builds; tests pass their own clocks."""

    def __init__(
        self,
        envelope: Envelope,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._envelope, self._now, self._sleep = envelope, now, sleep
        self.helper = Helper()
        self.stalls = 0  # unrenewed leases that this process has met

    def take(
        self,
        tiers: Sequence[Tier],
        key: str,
        look: Callable[[], _T | None],
        seconds: float | None = None,
        program: str = "",
        waits: bool = True,
    ) -> _T | Lease | None:
        """Return a lease, or what `look` finds that another node built; None if the build is not to be waited for."""
        # Raises Busy where another node builds, unless the caller `waits`.
        for tier in tiers:
            if not hasattr(tier.store, "create"):
                continue
            lease = Lease(tier, self._envelope, key, program, self.helper)
            try:
                taken = self._take(tier, lease, look, seconds, waits)
            except LeasesUnsupportedError as error:
                tier.problem = str(error)
                continue
            finally:
                tier.here.waits_anyway = False
            if taken is not lease or lease.is_first:
                return taken
            # If the lease was released just now, the build is in the store.
            found = look()
            if found is not None:
                lease.end(True)
            return lease if found is None else found
        return None

    def _take(
        self,
        tier: Tier,
        lease: Lease,
        look: Callable[[], _T | None],
        seconds: float | None,
        waits: bool,
    ) -> _T | Lease | None:
        begin = changed = self._now()
        deadline = begin + (_MOST_HELD_SECONDS if seconds is None else seconds)
        pause, tries, is_reported = _LEAST_PAUSE, 0, False
        seen: bytes | None = None
        while not (created := tier.query("create", lease.store_key, lease.data, LEASE_SECONDS)):
            held = tier.query("get", lease.store_key) if created is not None else None
            fields = self._opened(lease.key, held) if held is not None else {}
            now = self._now()
            seen, changed = (seen, changed) if held == seen else (held, now)
            if fields.get("abandoned"):
                return None
            if held is None or now - changed >= self._believed(fields):
                tries += 1
                if created is None or tries >= _MOST_TAKEOVERS or not tier.writable:
                    return None  # the store does not respond, or supports no leases
                if held is not None:
                    self._stalled(fields, now - changed)
                    if tier.query("replace", lease.store_key, held, lease.data, LEASE_SECONDS):
                        break
                continue  # it ended just now, or another node took it over
            tier.here.waits_anyway = True
            found = look()
            if found is not None or self._now() > deadline:
                return found
            if not waits:
                raise Busy
            waited = self._now() - begin
            if waited >= _REPORTED_SECONDS and not is_reported:
                is_reported = True
                who, what = fields["holder"], fields["program"]
                logs.note(f"waiting for {who}, which compiles {what} since {waited:.0f} s")
            # The random factor spreads the requests of many waiting nodes.
            self._sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311
            tier.here.counts["seconds_waited"] += pause
            pause = min(max(pause, waited * _PART_PAUSED), _MOST_PAUSE)
        return lease.start()

    def _opened(self, key: str, held: bytes) -> dict[str, Any]:
        """Return a lease's fields, or nothing if its signature is not valid."""
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
        if fields and seconds > 0:
            self.stalls += 1
            logs.note(
                f"{fields['holder']} did not renew its lease of {fields['program']} for "
                f"{seconds:.0f} s: it is built here"
            )


# --- A process's last leases ----------------------------------------------------------------------

# Lines are leases. A line with a dot clears the list; what is in the list at the end is released.
_SCRIPT = r"""held=
while IFS= read -r line; do
  case $line in .) held= ;; *) held="$held$line
" ;; esac
done
[ -n "$held" ] && printf %s "$held" | "$@"
"""
_PROGRAM = "import sys; sys.path[0] = sys.argv[1]; from rtcompile.store import remote; remote.release_leases()"


class Helper:
    """The shell that outlives this process, started with its first lease."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: set[str] = set()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()

    def note(self, lease: str, *, is_held: bool) -> None:
        """Tell the helper that this process holds a lease (a store key and a token), or no longer holds it."""
        with self._guard, suppress(OSError):
            (self._held.add if is_held else self._held.discard)(lease)
            self._process = self._process or self._start()
            if self._process.stdin is not None:
                self._process.stdin.write("".join([".\n", *self._held]).encode())

    def _start(self) -> subprocess.Popen[bytes]:
        above = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        return subprocess.Popen(
            ["/bin/sh", "-c", _SCRIPT, "sh", sys.executable, "-c", _PROGRAM, above],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            start_new_session=True,  # it outlives a signal to the process's group
        )

    def close(self) -> None:
        """End the shell, which releases the held leases; a forked child leaves it to the parent."""
        process, self._process = self._process, None
        if process is None:
            return
        is_done = not self._held and os.getpid() == self._owner
        with suppress(OSError):
            if is_done:
                process.kill()
            if process.stdin is not None:
                process.stdin.close()
        if is_done:
            process.wait()
        process.returncode = process.returncode or 0

    def __del__(self) -> None:
        with suppress(Exception):  # modules may be gone at the interpreter's end
            self.close()
