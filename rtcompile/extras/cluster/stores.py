"""The shared stores of a process, in the order of ``RTCOMPILE_REMOTE``: look-ups, builds, leases, and writing.

Entries are written in the background, and for a limited time at the end of the process.

The node that holds a signed lease builds, and the others wait. A lease lives for five seconds after its last renewal,
and is never removed: it ends with the process that renewed it, however that ends. If a process gets a lease within
three seconds after its look-up, nobody built the kernel in between, and it is not looked for again. A waiting process
trusts a lease as long as it sees renewals, by its own clock. After two that were not renewed, it waits for none.
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, Queue
from typing import Any, TypeVar

from rtcompile import forks
from rtcompile.errors import InvalidRequest, RtcompileWarning, warn
from rtcompile.extras.cluster.entries import (
    LEASE_SECONDS,
    REPLY_SECONDS,
    UNSIGNED,
    LeasesUnsupportedError,
    RemoteSettings,
    open_store,
    read_keys,
)
from rtcompile.extras.cluster.level import Level
from rtcompile.lookup import environment as environments
from rtcompile.settings import note
from rtcompile.store.folder import at_end, count
from rtcompile.store.locks import Busy

_FLUSH_SECONDS = 2.0  # at the process's end


# --- leases -------------------------------------------------------------------------------------

RENEW_SECONDS = 1.0
_SURE_SECONDS = 3.0  # between a look-up and a lease
_MOST_HELD_SECONDS = 300.0  # after which a lease ends in any case
_MOST_STALLS = 2  # after so many leases that were not renewed, none is trusted
_DEAD_SECONDS = 60.0  # since the last renewal, by the nodes' clocks, which may differ
_REPORTED_SECONDS = 2.0
_MOST_TRIES = 5
_LEAST_PAUSE, _MOST_PAUSE = 0.02, 0.5
# A waiting node sleeps for this fraction of its wait so far, which limits the delay.
_PART_PAUSED = 0.05

StoreEntry = tuple[str, str, bytes]  # kind, key, data
_T = TypeVar("_T")


def _machine() -> str:
    """Return an identifier of this machine's boot and of the PID namespace; "" if unknown."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.stat('/proc/self/ns/pid').st_ino}"
    return ""


class Lease:
    """The right to build for the whole cluster, and what was last seen of another node's lease while waiting for it."""

    def __init__(
        self, level: Level, key: str, program: str = "", looked_at: float = float("-inf")
    ) -> None:
        self.level, self.key = level, key
        self.looked_at = looked_at  # when the build was last looked for
        self.theirs: dict[str, Any] = {}
        self.changed = 0.0  # when theirs was seen for the first time
        self.token = secrets.token_hex(16)
        self._fields: dict[str, Any] = {
            "token": self.token,
            "holder": socket.gethostname(),
            "process": os.getpid(),
            "machine": _machine(),
            "program": program,
        }
        self._until = time.monotonic() + _MOST_HELD_SECONDS

    def data(self, is_abandoned: bool = False) -> bytes:
        """Return its JSON for the store, with the current time as the time of renewal."""
        fields = {**self._fields, "renewed": time.time(), "abandoned": is_abandoned}
        return json.dumps(fields).encode()

    def renew(self, *, is_abandoned: bool = False) -> bool:
        """Write it again, by the writing thread; return whether it is still held."""
        # If warnings are errors, the writing thread has no caller that could catch one.
        with suppress(RtcompileWarning):
            if self.level.put("lease", self.key, self.data(is_abandoned)):
                return time.monotonic() < self._until
        return False

    def look(self) -> dict[str, Any]:
        """Return the fields of the lease in the store; nothing if there is none, or it is not the team's."""
        with suppress(ValueError):
            fields = json.loads(self.level.get("lease", self.key) or b"")
            if isinstance(fields, dict) and isinstance(fields.get("renewed"), float):
                return fields
        return {}


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
        keys = read_keys(settings.key_file) if settings.key_file else (UNSIGNED,)
        self.writes = settings.mode == "rw" and keys[0].sign is not None
        self.levels = [Level(open_store(each, settings), keys) for each in settings.addresses]
        self.held: set[Lease] = set()  # leases that the writing thread renews
        self.stalls = 0  # leases of others that were not renewed
        self.now, self.sleep = time.monotonic, time.sleep
        self._renewed_at = time.monotonic()
        self._owner = os.getpid()
        self._tasks: Queue[Callable[[], object]] = Queue()
        self._guard = threading.Lock()
        self._writer: threading.Thread | None = None

    # --- leases --------------------------------------------------------------------------

    def lease(
        self,
        key: str,
        look: Callable[[], _T | None],
        seconds: float | None = None,
        program: str = "",
        waits: bool = True,
        looked_at: float = float("-inf"),
    ) -> _T | Lease | None:
        """Return a lease, or what `look` finds that another node built; None if the build is not to be waited for.

        Raises `Busy` where another node builds, unless the caller `waits`.
        """
        most = _MOST_HELD_SECONDS if seconds is None else seconds
        for level in self.levels if self.writes else []:
            try:
                with suppress(LeasesUnsupportedError):
                    return self._take(Lease(level, key, program, looked_at), look, most, waits)
            finally:
                level.this_thread.waits_for_node = False
        return None

    def _take(
        self, lease: Lease, look: Callable[[], _T | None], seconds: float, waits: bool
    ) -> _T | Lease | None:
        begin, pause, is_reported = self.now(), _LEAST_PAUSE, False
        while isinstance(taken := self._try(lease), dict):
            lease.level.this_thread.waits_for_node = True
            lease.looked_at = time.monotonic()
            found = look()
            if found is not None or self.now() > begin + seconds:
                return found
            if not waits:
                raise Busy
            waited = self.now() - begin
            if waited >= _REPORTED_SECONDS and not is_reported:
                is_reported = True
                note(f"waiting {waited:.0f} s so far for {_holder(taken)}")
            # The random factor spreads the requests of many waiting nodes.
            self.sleep(pause * random.uniform(0.75, 1.25))  # noqa: S311
            pause = min(max(pause, waited * _PART_PAUSED), _MOST_PAUSE)
        if not taken:
            return None
        found = None if time.monotonic() - lease.looked_at < _SURE_SECONDS else look()
        if found is not None:
            return found
        self.held.add(lease)
        self.later(lambda: None)  # from now on it is renewed
        return lease

    def end_lease(self, lease: Lease | None, shared: bool) -> None:
        """Let a lease end; unless its build is `shared`, all waiting processes build at once, not one by one."""
        if lease is not None:
            self.held.discard(lease)
            if not shared:
                lease.renew(is_abandoned=True)

    def _try(self, lease: Lease) -> dict[str, Any] | bool:
        """Take a lease that nobody holds; return whether that worked, or the fields of another node's lease."""
        for _ in range(_MOST_TRIES):
            fields = lease.look() if lease.theirs else {}
            if not fields:
                lease.theirs = {}
                created = lease.level.put("lease", lease.key, lease.data(), new=True, waiting=True)
                if created is not False:  # None: the store does not respond
                    return bool(created)
                fields = lease.look()
            if fields != lease.theirs:
                lease.theirs, lease.changed = fields, self.now()
            is_recent = bool(fields) and time.time() - fields["renewed"] < _DEAD_SECONDS
            if is_recent and fields.get("abandoned"):
                return False
            if is_recent and self._is_trusted(fields, self.now() - lease.changed):
                return fields
            if not lease.level.put("lease", lease.key, lease.data(), waiting=True):
                return False
            # Of several nodes that take it over at the same time, the last one has it.
            self.sleep(_LEAST_PAUSE)
            if lease.look().get("token") == lease.token:
                lease.looked_at = float("-inf")  # the former holder may have built it: look again
                return True
        return False

    def _is_trusted(self, fields: dict[str, Any], unchanged: float) -> bool:
        """Return whether to wait for the holder of a lease that was last seen to change so many seconds ago."""
        is_here = fields.get("machine") and fields["machine"] == _machine()
        if is_here and not os.path.exists(f"/proc/{fields.get('process')}"):
            return False  # its process has ended
        if unchanged < LEASE_SECONDS and self.stalls < _MOST_STALLS:
            return True
        if unchanged > 2 * RENEW_SECONDS:
            self.stalls += 1
            note(f"{_holder(fields)}, did not renew its lease for {unchanged:.0f} s: built here")
        return False

    # --- writing in the background -------------------------------------------------------

    def push(
        self,
        entries: Callable[[Level], Sequence[StoreEntry] | None] | None,
        then: Callable[[bool], None] = lambda _: None,
        levels: Sequence[Level] | None = None,
    ) -> None:
        """Write each store's entries, if there are any, in order; then call `then(all_have_them)`."""

        def write() -> None:
            kept = []
            try:
                for level in self.levels if levels is None else levels:
                    made = entries(level) if entries and level.writable else None
                    kept.append(made is not None and self._put(level, made))
            finally:
                then(bool(kept) and all(kept))

        self.later(write)

    def _put(self, level: Level, entries: Sequence[StoreEntry]) -> bool:
        for entry in entries:
            took_it = level.put(*entry)
            with self._tasks.all_tasks_done:
                self._tasks.all_tasks_done.notify_all()  # `flush` sees progress
            if not took_it:
                return False
        return True

    def later(self, task: Callable[[], object]) -> None:
        """Run a task in the background, in the order of the calls."""
        self._tasks.put(task)
        with self._guard:
            if self._writer is None:
                self._writer = threading.Thread(
                    target=self._write, name="rtcompile-push", daemon=True
                )
                self._writer.start()

    def _write(self) -> None:
        """Run the tasks, and renew this process's leases between them."""
        while True:
            with suppress(Empty):
                task = self._tasks.get(timeout=RENEW_SECONDS if self.held else None)
                try:
                    task()
                except Exception as error:  # noqa: BLE001  # the next build is pushed whatever became of this one
                    with suppress(RtcompileWarning):  # the warning filter may make it an error
                        warn(f"RTCOMPILE_REMOTE: a build could not be pushed: {error!r}.")
                finally:
                    self._tasks.task_done()
            if time.monotonic() - self._renewed_at >= RENEW_SECONDS:
                for lease in [*self.held]:
                    if not lease.renew():
                        self.held.discard(lease)
                self._renewed_at = time.monotonic()

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until everything is written; return whether it is. `seconds` is None at the process's end."""
        deadline = time.monotonic() + (_FLUSH_SECONDS if seconds is None else seconds)
        progress = self._tasks.all_tasks_done
        with progress:
            while self._tasks.unfinished_tasks:
                most = deadline - time.monotonic()
                if seconds is None:
                    # A store that stopped responding may not have been detected yet.
                    most = min(most, REPLY_SECONDS)
                if most <= 0 or not progress.wait(most):
                    break
            return not self._tasks.unfinished_tasks

    def end(self) -> None:
        """Write the remaining entries at the process's end, within limits."""
        if os.getpid() == self._owner:
            self.flush()


# --- the process's own ---------------------------------------------------------------------------

_stores: dict[tuple[tuple[str, str], ...], Stores | None] = {}  # by the variables
_guard = forks.lock()


def current() -> Stores | None:
    """Return the stores in the environment's settings, or None; a bad setting only causes a warning."""
    key = tuple(
        sorted(pair for pair in os.environ.items() if pair[0].startswith("RTCOMPILE_REMOTE"))
    )
    with _guard:
        if key not in _stores:
            try:
                settings = RemoteSettings.from_environ()
                found = _stores[key] = Stores(settings) if settings.addresses else None
                if found is not None:
                    count(environments.current().folder)  # its log is written after `end`
                    at_end(found.end)
            except InvalidRequest as error:
                warn(f"{error}. Builds go on without it.")
                _stores[key] = None
        return _stores[key]


forks.in_child(_stores.clear)
