"""The shared stores of a process, in the order of ``RTCOMPILE_REMOTE``.

Entries are written in the background, and for a limited time at the end of the process.
"""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from rtcompile.errors import InvalidRequest, RtcompileWarning, warn
from rtcompile.files.sealed import content_digest
from rtcompile.settings import cache_dir
from rtcompile.store.folder import STATISTICS, Folder, at_end
from rtcompile.store.leases import Waiting
from rtcompile.store.shared import (
    BadEntryError,
    Envelope,
    Key,
    RemoteSettings,
    most_data,
    open_store,
    read_keys,
)
from rtcompile.store.tier import Tier as Tier

_REPORT_SECONDS = 30.0
_AT_ONCE = 128  # keys of one request
_CONNECTIONS = 16
_FLUSH_SECONDS = 2.0  # at the process's end

Entry = tuple[str, str, bytes]  # kind, key, data


class Remote:
    """All shared stores that a process uses."""

    def __init__(self, settings: RemoteSettings) -> None:
        if importlib.util.find_spec("zstandard") is None:
            raise InvalidRequest(
                "RTCOMPILE_REMOTE: the package zstandard is not installed; `pip install zstandard`"
            )
        self.envelope = Envelope(read_keys(settings.key_file) if settings.key_file else ())
        self.writes = settings.mode == "rw" and self.envelope.sign is not None
        self.tiers = [Tier(open_store(address, settings)) for address in settings.addresses]
        self.waiting = Waiting(self.envelope)
        self._reported_at = time.monotonic()
        self._owner = os.getpid()
        self._pending: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._unfinished = 0
        self._progress = threading.Condition()
        self._writer: threading.Thread | None = None

    def get(self, kind: str, key: str, only: Tier | None = None) -> bytes | None:
        """Return the verified bytes from the first store that has them, or from the given one; or None."""
        for tier in self.tiers if only is None else [only]:
            for signer in self.envelope.keys:
                entry = tier.query("get", self.envelope.store_key(kind, key, signer))
                found = self._opened(tier, kind, key, entry, signer)
                if found is not None:
                    return found
        return None

    def get_many(self, kind: str, keys: Sequence[str], tier: Tier) -> dict[str, bytes]:
        """Return the verified bytes that a store has, by key, requesting many keys at a time."""
        found: dict[str, bytes] = {}
        for signer in self.envelope.keys:
            wanted = [key for key in keys if key not in found]
            store_keys = [self.envelope.store_key(kind, key, signer) for key in wanted]
            for key, entry in zip(wanted, self._entries(store_keys, tier), strict=True):
                data = self._opened(tier, kind, key, entry, signer)
                if data is not None:
                    found[key] = data
        return found

    def _entries(self, store_keys: Sequence[str], tier: Tier) -> list[bytes | None]:
        if not hasattr(tier.store, "get_many"):
            # Not at the top: it cannot be imported after the main thread has ended.
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(_CONNECTIONS) as threads:
                return [*threads.map(partial(tier.query, "get", waiting=False), store_keys)]
        found: list[bytes | None] = []
        for at in range(0, len(store_keys), _AT_ONCE):
            chunk = store_keys[at : at + _AT_ONCE]
            found += tier.query("get_many", chunk, waiting=False) or [None] * len(chunk)
        return found

    def _opened(self, tier: Tier, kind: str, key: str, entry: object, signer: Key) -> bytes | None:
        if entry is not None:
            try:
                return self.envelope.open(kind, key, entry, signer)
            except BadEntryError as error:
                tier.refused(f"{kind} {key[:16]}: {error}")
        return None

    @contextmanager
    def counting(self) -> Iterator[dict[str, dict[str, float]]]:
        """Yield a mapping that, after the ``with`` block, has each store's costs and savings for this thread."""
        before = [{**tier.here.counts} for tier in self.tiers]
        found: dict[str, dict[str, float]] = {}
        yield found
        for tier, then in zip(self.tiers, before, strict=True):
            found[tier.store.name] = {n: c - then[n] for n, c in tier.here.counts.items()}

    def lease(self, *given: Any, **more: Any) -> Any:
        """Return a lease for building, or what another node built: `Waiting.take`."""
        return self.waiting.take(self.tiers if self.writes else [], *given, **more)

    # --- writing -------------------------------------------------------------------------

    def push(
        self,
        entries: Callable[[Tier], Sequence[Entry]],
        then: Callable[[bool], None] = lambda _: None,
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
        """Run a task in the background, in the order of the calls."""
        with self._progress:
            self._unfinished += 1
            if self._writer is None:
                thread = threading.Thread(target=self._write, name="rtcompile-push", daemon=True)
                self._writer = thread
                thread.start()
        self._pending.put(task)

    def put(self, tier: Tier, entries: Sequence[Entry]) -> bool:
        """Write entries to a store now; return whether it accepted them."""
        for kind, key, data in entries:
            if len(data) > most_data(kind):
                return False  # every reader would reject it
            sealed = self.envelope.seal(kind, key, data)
            store_key = self.envelope.store_key(kind, key)
            took_it = tier.query("put", store_key, sealed, waiting=False)
            with self._progress:
                self._progress.notify_all()
            if took_it is None:
                return False
            tier.counts["written"] += 1
            tier.counts["bytes_written"] += len(sealed)
        return True

    def _write(self) -> None:
        while True:
            try:
                self._pending.get()()
            except Exception as error:  # noqa: BLE001  # the next build is pushed whatever became of this one
                with suppress(RtcompileWarning):  # the warning filter may make it an error
                    warn(f"RTCOMPILE_REMOTE: a build could not be pushed: {error!r}.")
            finally:
                with self._progress:
                    self._unfinished -= 1
                    self._progress.notify_all()
            if time.monotonic() - self._reported_at > _REPORT_SECONDS:
                self.report()

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until everything is written; return whether it is. At the process's end there are no `seconds`."""
        deadline = time.monotonic() + (_FLUSH_SECONDS if seconds is None else seconds)
        with self._progress:
            while self._unfinished:
                most = deadline - time.monotonic()
                if seconds is None:
                    # A store that stopped responding may not have been detected yet.
                    most = min(most, max(tier.ledger.time_limit() for tier in self.tiers))
                if most <= 0 or not self._progress.wait(most):
                    return not self._unfinished
        return True

    def report(self) -> None:
        """Add the counts since the last report to the machine's counts and the fleet's."""
        self._reported_at = time.monotonic()
        for tier in self.tiers:
            more = tier.unreported()
            if more and self.writes and hasattr(tier.store, "add") and tier.open:
                tier.query("add", more, waiting=False)
            named = {f"{name} {tier.store.name}": count for name, count in more.items()}
            if more:
                Folder(cache_dir(os.environ)).log(named)

    def end(self) -> None:
        """Write the remaining entries at the process's end, within limits, and end the helper."""
        if os.getpid() == self._owner:
            self.flush()
            for tier in self.tiers:
                if hasattr(tier.store, "flush") and tier.open:
                    tier.query("flush", waiting=False)
            with suppress(RtcompileWarning):
                self.report()
            self.waiting.helper.close()


# --- the process's own ---------------------------------------------------------------------------

_remotes: dict[tuple[tuple[str, str], ...], Remote | None] = {}  # by the variables
_guard = threading.Lock()
_VARIABLES = ("RTCOMPILE_REMOTE", "RTCOMPILE_CACHE_SHARED")


def remote() -> Remote | None:
    """Return the stores in the environment's settings, or None; a bad setting only causes a warning."""
    key = tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith(_VARIABLES)))
    with _guard:
        if key not in _remotes:
            try:
                settings = RemoteSettings.from_environ()
                if settings.shares_nothing:
                    warn(f"{settings.shares_nothing}.")
                found = _remotes[key] = Remote(settings) if settings.addresses else None
                if found is not None:
                    at_end(found.end)
                    _prefetch()
            except InvalidRequest as error:
                warn(f"{error}. Builds go on without it.")
                _remotes[key] = None
        return _remotes[key]


def _prefetch() -> None:
    """Fetch the builds of records in another process, once an hour on each node."""
    records = [*filter(None, os.environ.get("RTCOMPILE_REMOTE_PREFETCH", "").split(os.pathsep))]
    if not records:
        return
    what = content_digest("\0".join([*records, os.environ.get("RTCOMPILE_REMOTE", "")]).encode())
    folder = Folder(cache_dir(os.environ))
    with suppress(OSError):  # the first process in this hour created the file
        folder.prepare()
        with folder.open(STATISTICS) as descriptor:
            name = f".fetched-{what[:16]}-{time.time() // 3600:.0f}"  # `cache prune` removes it
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=descriptor))
        nothing = subprocess.DEVNULL
        process = subprocess.Popen(
            [sys.executable, "-m", "rtcompile", "cache", "pull", *records],
            env={**os.environ, "RTCOMPILE_REMOTE_PREFETCH": ""},
            stdin=nothing,
            stdout=nothing,
            stderr=nothing,
        )
        threading.Thread(target=process.wait, name="rtcompile-prefetch", daemon=True).start()


def release_leases() -> None:
    """Release the leases that standard input lists, a store key and a token on each line."""
    stores = Remote(RemoteSettings.from_environ())
    for line in sys.stdin.read().splitlines():
        store_key, _, token = line.partition(" ")
        for tier in stores.tiers:
            held = tier.query("get", store_key) if hasattr(tier.store, "replace") else None
            with suppress(BadEntryError, ValueError, TypeError):
                opened = stores.envelope.open("lease", store_key.rpartition("/")[2], held)
                fields = json.loads(opened)
                if fields.get("token") == token:
                    tier.query("replace", store_key, held, None, 1.0, waiting=False)


def _after_fork() -> None:
    global _guard
    _guard = threading.Lock()
    for stores in _remotes.values():
        if stores is not None:
            stores.waiting.helper.close()
    _remotes.clear()


os.register_at_fork(after_in_child=_after_fork)
