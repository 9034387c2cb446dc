"""The shared stores of a process, in the order of ``RTCOMPILE_REMOTE``: look-ups, builds, leases, and writing.

Entries are written in the background, and for a limited time at the end of the process.

The node that holds a signed lease builds, and the others wait. A lease lives for five seconds after its last
renewal, and is never removed: it ends with the process that renewed it, however that ends. Nobody else can have built a
kernel whose lease was free three seconds after it was looked for. A waiting process trusts a lease as long as it sees
renewals, by its own clock. After two leases that were not renewed, a process stops waiting for any.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from rtcompile import forks
from rtcompile.errors import InvalidRequest, RtcompileWarning, warn
from rtcompile.extras.cluster.entries import (
    REPLY_SECONDS,
    Envelope,
    RemoteSettings,
    most_data,
    open_store,
    read_keys,
)
from rtcompile.extras.cluster.level import Level
from rtcompile.extras.cluster.pages import Sharing, StoreEntry
from rtcompile.store.shared import (
    BadEntryError,
    Busy,
    KeyInputs,
    LeasesUnsupportedError,
    Store,
    at_end,
    count,
    note,
)

_REPORT_SECONDS = 30.0
_FLUSH_SECONDS = 2.0  # at the process's end


# --- leases -------------------------------------------------------------------------------------

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

    def end(self, lease: Lease | None, shared: bool) -> None:
        """Let a lease end; unless its build is `shared`, all waiting processes build at once, not one by one."""
        if lease is not None:
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
                    with suppress(LeasesUnsupportedError):
                        return self._take(lease, look, most, waits)
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


# --- stores -------------------------------------------------------------------------------------


class Stores:
    """All shared stores that a process uses."""

    def __init__(self, settings: RemoteSettings) -> None:
        if importlib.util.find_spec("zstandard") is None:
            raise InvalidRequest(
                "RTCOMPILE_REMOTE: the package zstandard is not installed; `pip install zstandard`"
            )
        self.envelope = Envelope(read_keys(settings.key_file) if settings.key_file else ())
        self.writes = settings.mode == "rw" and self.envelope.sign is not None
        self.levels = [Level(open_store(address, settings)) for address in settings.addresses]
        self.leases = Leases(self.envelope)
        self._reported_at = self._renewed_at = time.monotonic()
        self._owner = os.getpid()
        self._tasks: deque[Callable[[], None]] = deque()  # the first may be running
        self._progress = threading.Condition()
        self._writer: threading.Thread | None = None

    def sharing(self, inputs: KeyInputs, store: Store) -> Sharing:
        """Return a build as it is looked for in these stores, and written to them."""
        return Sharing(self, inputs, store)

    def lease(self, *given: Any, **more: Any) -> Any:
        """Return what `Leases.take` returns: a lease for building, or what another node built."""
        taken = self.leases.take(self.levels if self.writes else [], *given, **more)
        if isinstance(taken, Lease):
            self.later(lambda: None)  # from now on it is renewed
        return taken

    # --- reading -------------------------------------------------------------------------

    def get(self, kind: str, key: str, only: Level | None = None) -> bytes | None:
        """Return the verified bytes from the first store that has them, or from the given one; or None."""
        for level in self.levels if only is None else [only]:
            for signer in self.envelope.keys:
                entry = level.get(self.envelope.store_key(kind, key, signer))
                if entry is None:
                    continue
                try:
                    return self.envelope.open(kind, key, entry, signer)
                except BadEntryError as error:
                    level.refused(f"{kind} {key[:16]}: {error}")
        return None

    # --- writing -------------------------------------------------------------------------

    def push(
        self,
        entries: Callable[[Level], Sequence[StoreEntry]],
        then: Callable[[bool], None] = lambda _: None,
        levels: Sequence[Level] | None = None,
    ) -> None:
        """Write each store's entries in order, in the background; then call `then(all_have_them)`."""

        def write() -> None:
            kept = []
            try:
                for level in self.levels if levels is None else levels:
                    kept.append(level.writable and self.put(level, entries(level)))
            finally:
                then(bool(kept) and all(kept))

        self.later(write)

    def put(self, level: Level, entries: Sequence[StoreEntry]) -> bool:
        """Write entries to a store now; return whether it accepted them."""
        for kind, key, data in entries:
            if len(data) > most_data(kind):
                return False  # every reader would reject it
            sealed = self.envelope.seal(kind, key, data)
            took_it = level.put(self.envelope.store_key(kind, key), sealed)
            with self._progress:
                self._progress.notify_all()
            if not took_it:
                return False
            level.counts["written"] += 1
            level.counts["bytes_written"] += len(sealed)
        return True

    def later(self, task: Callable[[], None]) -> None:
        """Run a task in the background, in the order of the calls."""
        with self._progress:
            self._tasks.append(task)
            self._progress.notify_all()
            if self._writer is None:
                thread = threading.Thread(target=self._write, name="rtcompile-push", daemon=True)
                self._writer = thread
                thread.start()

    def _write(self) -> None:
        """Run the tasks, and renew this process's leases between them."""
        while True:
            with self._progress:
                seconds = RENEW_SECONDS if self.leases.held else None
                is_pending = self._progress.wait_for(lambda: self._tasks, seconds)
            if is_pending:
                self._run(self._tasks[0])
            if time.monotonic() - self._renewed_at >= RENEW_SECONDS:
                self.leases.renew()
                self._renewed_at = time.monotonic()
            if time.monotonic() - self._reported_at > _REPORT_SECONDS:
                self.report()

    def _run(self, task: Callable[[], None]) -> None:
        try:
            task()
        except Exception as error:  # noqa: BLE001  # the next build is pushed whatever became of this one
            with suppress(RtcompileWarning):  # the warning filter may make it an error
                warn(f"RTCOMPILE_REMOTE: a build could not be pushed: {error!r}.")
        finally:
            with self._progress:
                self._tasks.popleft()
                self._progress.notify_all()

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until everything is written; return whether it is. At the process's end there are no `seconds`."""
        deadline = time.monotonic() + (_FLUSH_SECONDS if seconds is None else seconds)
        with self._progress:
            while self._tasks:
                most = deadline - time.monotonic()
                if seconds is None:
                    # A store that stopped responding may not have been detected yet.
                    most = min(most, REPLY_SECONDS)
                if most <= 0 or not self._progress.wait(most):
                    return not self._tasks
        return True

    def report(self) -> None:
        """Add the counts since the last report to the machine's."""
        self._reported_at = time.monotonic()
        for level in self.levels:
            more = level.unreported()
            if more:
                named = {f"{name} {level.store.name}": count for name, count in more.items()}
                count(named)

    def end(self) -> None:
        """Write the remaining entries at the process's end, within limits."""
        if os.getpid() == self._owner:
            self.flush()
            with suppress(RtcompileWarning):
                self.report()


# --- the process's own ---------------------------------------------------------------------------

_stores: dict[tuple[tuple[str, str], ...], Stores | None] = {}  # by the variables
_guard = forks.lock()
_VARIABLES = ("RTCOMPILE_REMOTE", "RTCOMPILE_CACHE_SHARED")


def current() -> Stores | None:
    """Return the stores in the environment's settings, or None; a bad setting only causes a warning."""
    key = tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith(_VARIABLES)))
    with _guard:
        if key not in _stores:
            try:
                settings = RemoteSettings.from_environ()
                if settings.shares_nothing:
                    warn(f"{settings.shares_nothing}.")
                found = _stores[key] = Stores(settings) if settings.addresses else None
                if found is not None:
                    at_end(found.end)
            except InvalidRequest as error:
                warn(f"{error}. Builds go on without it.")
                _stores[key] = None
        return _stores[key]


forks.in_child(_stores.clear)
