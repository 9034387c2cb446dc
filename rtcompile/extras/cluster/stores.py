"""The shared stores of a process, in the order of ``RTCOMPILE_REMOTE``: look-ups, builds, and writing.

Entries are written in the background, and for a limited time at the end of the process.
"""

from __future__ import annotations

import importlib.util
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from rtcompile import forks
from rtcompile.errors import InvalidRequest, RtcompileWarning, warn
from rtcompile.extras.cluster.entries import Envelope, Key, most_data, read_keys
from rtcompile.extras.cluster.leases import RENEW_SECONDS, Lease, Leases
from rtcompile.extras.cluster.level import Level
from rtcompile.extras.cluster.pages import SharedBuild, StoreEntry
from rtcompile.extras.cluster.settings import REPLY_SECONDS, RemoteSettings, open_store
from rtcompile.store.shared import BadEntryError, KeyInputs, ObjectCode, Store, at_end, count

_REPORT_SECONDS = 30.0
_AT_ONCE = 128  # keys of one request
_CONNECTIONS = 16
_FLUSH_SECONDS = 2.0  # at the process's end


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
        self._pending: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._unfinished = 0
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
                if (found := self._opened(level, kind, key, entry, signer)) is not None:
                    return found
        return None

    def get_many(self, level: Level, kind: str, keys: Sequence[str]) -> dict[str, bytes]:
        """Return the verified bytes that a store has, by key, requesting many keys at a time."""
        found: dict[str, bytes] = {}
        for signer in self.envelope.keys:
            wanted = [key for key in keys if key not in found]
            store_keys = [self.envelope.store_key(kind, key, signer) for key in wanted]
            for key, entry in zip(wanted, _entries(store_keys, level), strict=True):
                data = self._opened(level, kind, key, entry, signer)
                if data is not None:
                    found[key] = data
        return found

    def _opened(
        self, level: Level, kind: str, key: str, entry: object, signer: Key
    ) -> bytes | None:
        if entry is not None:
            try:
                return self.envelope.open(kind, key, entry, signer)
            except BadEntryError as error:
                level.refused(f"{kind} {key[:16]}: {error}")
        return None

    # --- writing -------------------------------------------------------------------------

    def push(
        self,
        entries: Callable[[Level, Callable[[str, str], bytes | None]], Sequence[StoreEntry]],
        then: Callable[[bool], None] = lambda _: None,
        levels: Sequence[Level] | None = None,
    ) -> None:
        """Write each store's entries in order, in the background; then call `then(all_have_them)`."""

        def write() -> None:
            kept = []
            try:
                for level in self.levels if levels is None else levels:
                    read = partial(self.get, only=level)
                    kept.append(level.writable and self.put(level, entries(level, read)))
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
            self._unfinished += 1
            if self._writer is None:
                thread = threading.Thread(target=self._write, name="rtcompile-push", daemon=True)
                self._writer = thread
                thread.start()
        self._pending.put(task)

    def _write(self) -> None:
        """Run the tasks, and renew this process's leases between them."""
        while True:
            with suppress(queue.Empty):
                self._run(self._pending.get(timeout=RENEW_SECONDS if self.leases.held else None))
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
                self._unfinished -= 1
                self._progress.notify_all()

    def flush(self, seconds: float | None = None) -> bool:
        """Wait until everything is written; return whether it is. At the process's end there are no `seconds`."""
        deadline = time.monotonic() + (_FLUSH_SECONDS if seconds is None else seconds)
        with self._progress:
            while self._unfinished:
                most = deadline - time.monotonic()
                if seconds is None:
                    # A store that stopped responding may not have been detected yet.
                    most = min(most, REPLY_SECONDS)
                if most <= 0 or not self._progress.wait(most):
                    return not self._unfinished
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


class Sharing:
    """One build in the stores: found there, or made under a lease and pushed."""

    def __init__(self, stores: Stores, inputs: KeyInputs, store: Store) -> None:
        self._stores, self._build = stores, SharedBuild(inputs, store)
        self._begin = time.monotonic()

    def build(
        self, compile: Callable[[float | None], ObjectCode], seconds: float | None, waits: bool
    ) -> ObjectCode:
        """Return the result of `compile`; if another node builds, wait for its result, or raise `Busy`."""
        build, look = self._build, partial(self.find, is_first=False)
        taken = self._stores.lease(
            build.lease_key, look, seconds, build.program, waits, self._begin
        )
        if isinstance(taken, ObjectCode):
            return taken
        left = None if seconds is None else seconds - (time.monotonic() - self._begin)
        return self._built(partial(compile, left), taken)

    def find(self, *, is_first: bool = True) -> ObjectCode | None:
        """Return the first store's build, after writing it to the local cache; a repeated miss counts once."""
        stores, build = self._stores, self._build
        for at, level in enumerate(stores.levels):
            begin = time.monotonic()
            code = build.find(level, partial(stores.get, only=level))
            if code is None:
                if is_first:
                    level.miss()
                continue
            level.hit(code.build.compiled_in, time.monotonic() - begin)
            entries = build.entries_of(code) if at and stores.writes else None
            if entries is not None:  # copy it to the stores before this one
                stores.push(entries, levels=stores.levels[:at])
            return code
        return None

    def _built(self, compile: Callable[[], ObjectCode], lease: Lease | None) -> ObjectCode:
        """Return the result of `compile`, and push it if others can use it; then the lease ends."""
        stores = self._stores

        def end(shared: bool) -> None:
            if lease is not None:
                stores.leases.end(lease, shared)

        try:
            code = compile()
            entries = self._build.entries_of(code) if stores.writes else None
        except BaseException:
            stores.later(partial(end, False))
            raise
        for level in stores.levels:
            level.built(code.build.compiled_in)
        if entries is None:
            stores.later(partial(end, False))
        else:
            stores.push(entries, end)
        return code


def _entries(store_keys: Sequence[str], level: Level) -> list[bytes | None]:
    if not hasattr(level.store, "get_many"):
        # Not at the top: it cannot be imported after the main thread has ended.
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(_CONNECTIONS) as threads:
            return [*threads.map(partial(level.get, waiting=False), store_keys)]
    found: list[bytes | None] = []
    for at in range(0, len(store_keys), _AT_ONCE):
        chunk = store_keys[at : at + _AT_ONCE]
        found += level.get_many(chunk) or [None] * len(chunk)
    return found


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
