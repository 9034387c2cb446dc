"""The local cache: finds objects by their key inputs, in memory or on disk. Any problem counts as a miss.

A hit reads two small files, of records and of an object, and opens no database. If the storage cannot
be used, the user gets one warning and memory is used instead; no build fails because of it.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache, partial
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from rtcompile import forks
from rtcompile.errors import warn
from rtcompile.files.fileset import FileSet
from rtcompile.files.sealed import UntrustedError
from rtcompile.named import NamedTuple
from rtcompile.request import object_code
from rtcompile.request.key import KeyInputs, is_portable, path_bound, reason_against
from rtcompile.request.object_code import (
    MOST_LISTED,
    RECORDS,
    Found,
    ObjectCode,
    Record,
    decode_records,
    encode_records,
    hit,
)
from rtcompile.request.request import EITHER
from rtcompile.settings import Settings
from rtcompile.store import inventory
from rtcompile.store.folder import Folder, Memory, count, take_counts
from rtcompile.store.inventory import Entry, Usage

T = TypeVar("T")

_RETRY_SECONDS = 10.0  # time before writing to a folder is tried again after a failure

# The journal of all processes is summed up when it reaches this size, or when this fraction of the limit was written:
# eviction leaves more than that free. A process checks it after writing at most _PART_UNCHECKED of the limit.
_MOST_JOURNAL = 32 << 10
_PART_WRITTEN = 1 / 16
_PART_UNCHECKED = 1 / 1024

_LOCK_DIGITS = 3  # of a key, which name its lock file
_MERGE_SECONDS = 1.0  # wait for another writer of the same records

_stores: dict[tuple[str, bool, int, bool], Store] = {}
# A build reads its key's records again when it is done.
_decode_records = lru_cache(maxsize=32)(decode_records)


def object_file(inputs: KeyInputs, object_key: str, obj: ObjectCode) -> bytes:
    """Return the content of a build's object file."""
    return object_code.encode(object_key, obj, inputs.summary())


class Missing(NamedTuple):
    """What a search knows instead of an object: all records that it found."""

    inputs: KeyInputs
    records: tuple[Record, ...]

    def why(self) -> str:
        """Return in one line why there is no object: ``"header /x/foo.h changed"``."""
        inputs = self.inputs
        builds = [record for record in self.records if record.failure is None]
        if reason := reason_against(inputs) or (builds[0].reason if builds else ""):
            return f"never cached: {reason}"
        for build in builds:
            if build.object_key and inputs.serves(build.backend, build.compiler):
                return build.files.difference() or "its object was evicted or damaged"
        if builds:
            wanted = "any compiler here" if inputs.backend in EITHER else inputs.backend
            return f"built by {builds[0].backend} ({builds[0].compiler}), wanted from {wanted}"
        for record in self.records:
            if record.failure is not None and record.compiler == inputs.all_compilers():
                change = record.files.difference()
                return "its last build failed, and " + (
                    change or "nothing that it read has changed"
                )
        return "no build of this source with these options"


# --- The cache of one directory ----------------------------------------------------------------------


class Store:
    """The cache of one directory, by key inputs; `open` returns one store per directory."""

    def __init__(self, path: str, *, on_disk: bool, size: int, writable: bool = True) -> None:
        self.size = size
        self._folder = Folder(path, writable=on_disk and writable, readable=on_disk)
        self._warned = False
        self._guard = threading.RLock()
        self._unwritten = Memory()  # what could not be written, by folder and name
        self._flights: WeakValueDictionary[str, Any] = WeakValueDictionary()  # locks by lookup key
        self._locked: dict[tuple[int, str], int] = {}
        self._has_locks = False  # whether the folder for them is there
        self._unchecked = float("inf")  # bytes written since the journal was last read
        if on_disk:
            try:
                self._folder.check()
            except UntrustedError as error:
                self._folder.readable = False
                self._folder.write_at = float("inf")
                self._warn(
                    f"it is not used: {error}. Builds are kept in memory until this process ends; "
                    "set RTCOMPILE_CACHE_DIR to a directory of your own. Users share builds by "
                    "RTCOMPILE_REMOTE=file:///shared/folder"
                )

    @classmethod
    def open(cls, settings: Settings) -> Store:
        """Return the store that `settings` describe; repeated calls return the same one."""
        key = (settings.cache_dir, settings.cache_on_disk, settings.cache_size, settings.jit)
        if key not in _stores:
            path, on_disk, size, jit = key
            _stores.setdefault(key, cls(path, on_disk=on_disk, size=size, writable=jit))
        return _stores[key]

    # --- finding -------------------------------------------------------------------------

    def find(self, inputs: KeyInputs) -> ObjectCode | None:
        """Return the cached object for `inputs` and the current files; None if there is none."""
        return found.obj if isinstance(found := self.search(inputs), Found) else None

    def why(self, inputs: KeyInputs) -> str:
        """Return in one line why `find` returns None: ``"header /x/foo.h changed"``."""
        found = self.search(inputs, counts=False)
        return "" if isinstance(found, Found) else found.why()

    def search(self, inputs: KeyInputs, *, counts: bool = True) -> Found | Missing:
        """Return the object that `find` returns and its record, or what is known instead."""
        seen = []
        for record in self._stored(inputs):
            seen.append(record)
            key, files = record.object_key, record.files
            if not key or not inputs.serves(record.backend, record.compiler):
                continue
            fresh = files.current()
            obj = None if fresh is None else self._decoded("objects", key, object_code.decode)
            if fresh is None or obj is None:
                continue
            if fresh is not files:
                record = record._replace(files=fresh)
                self._wrote(self._put_build(inputs, record, obj))
            if counts:
                count(self._folder, hits=1)
            where = "memory" if self._unwritten.find(("objects", key)) else "disk"
            return Found(hit(obj, fresh, where), record)
        return Missing(inputs, tuple(seen))

    def _stored(self, inputs: KeyInputs) -> Iterator[Record]:
        """Yield the records on disk; the object of one that read no file is found without them."""
        key = inputs.key_without_files
        if key and (self._unwritten.find(("objects", key)) or self._folder.has("objects", key)):
            yield Record(FileSet(), key, "nvrtc", inputs.compilers["nvrtc"])
        for each in (inputs.lookup_key, inputs.portable_key):
            yield from self._records(inputs, each)

    def _records(self, inputs: KeyInputs, key: str) -> tuple[Record, ...]:
        """Return the records of a lookup key, or of a key without paths."""
        return self._decoded(RECORDS, key, partial(_decode_records, search=inputs.search)) or ()

    def _decoded(self, kind: str, name: str, decode: Callable[[str, bytes], T | None]) -> T | None:
        """Return what `decode` makes of a file, in memory or on disk; None if there is none."""
        data = self._unwritten.find((kind, name))
        return decode(name, data) if data else self._folder.decoded(kind, name, decode)

    def failure(self, inputs: KeyInputs, missing: Missing | None = None) -> Record | None:
        """Return the record of a failure with these compilers; None if there is none, or a file has changed.

        `missing` is what `search` just returned.
        """
        compilers = inputs.all_compilers()
        for record in missing.records if missing else self._stored(inputs):
            if record.failure is not None and record.compiler == compilers:
                now = record.files.current()
                if now is None:
                    continue
                if now is not record.files:
                    record = record._replace(files=now)
                    self.keep_failure(inputs, record)
                return record
        return None

    # --- keeping -------------------------------------------------------------------------

    def add(self, inputs: KeyInputs, obj: ObjectCode, dependencies: FileSet) -> Record:
        """Keep a build, or the reason why it is not kept; return its record."""
        backend = obj.build.backend
        compiler = inputs.compilers.get(backend, "")
        if reason := dependencies.uncacheable or reason_against(inputs):
            record = Record(FileSet(), "", backend, compiler, reason)
            self._wrote(self._put(inputs, record, inputs.lookup_key))
            return record
        bound = path_bound(inputs, obj, dependencies)
        object_key = inputs.object_key(dependencies, backend=backend, path_bound=bound)
        record = Record(dependencies, object_key, backend, compiler)
        self._keep(inputs, record, obj, object_file(inputs, object_key, obj), misses=1)
        return record

    def keep_failure(self, inputs: KeyInputs, record: Record) -> None:
        """Keep a failure, unless it depends on the time of the build."""
        if not reason_against(inputs):
            record = record._replace(compiler=inputs.all_compilers())
            self._wrote(self._put(inputs, record, inputs.lookup_key))

    def forget_failure(self, inputs: KeyInputs) -> None:
        """Remove the failures of these inputs, because they are built again."""
        key = inputs.lookup_key
        found = self._records(inputs, key)
        builds = [record for record in found if record.failure is None]
        if len(builds) < len(found):
            self._save(RECORDS, key, encode_records(key, builds, search=inputs.search))

    def adopt(self, inputs: KeyInputs, record: Record, data: bytes) -> Found | None:
        """Keep another machine's build and return it; None if `data` is not its object."""
        obj = object_code.decode(record.object_key, data)
        if obj is None:
            return None
        self._keep(inputs, record, obj, data, fetched=1)
        return Found(hit(obj, record.files, "remote"), record)

    def _keep(
        self, inputs: KeyInputs, record: Record, obj: ObjectCode, data: bytes, **counted: int
    ) -> None:
        written = self._save("objects", record.object_key, data)
        if record.object_key != inputs.key_without_files:
            written += self._put_build(inputs, record, obj)
        self._wrote(written, **counted)

    def keep_source(self, name: str, source: str) -> None:
        """Write a source to the path in the line information, under `name`, which contains its digest."""
        if self._folder.writable and not os.path.lexists(self._folder.file("sources", name)):
            self.publish("sources", name, source.encode("utf-8", "replace"))

    def _put_build(self, inputs: KeyInputs, record: Record, obj: ObjectCode) -> int:
        """Write a build's record, under the key without paths if no path matters; return the bytes written."""
        if not is_portable(inputs, obj, record.files):
            return self._put(inputs, record, inputs.lookup_key)
        # Builds with other paths have other build locks, and would drop each other's records.
        with self._lock(inputs.portable_key, _MERGE_SECONDS):
            return self._put(inputs, record, inputs.portable_key)

    def _put(self, inputs: KeyInputs, record: Record, key: str) -> int:
        """Put a record before the others of a key, in place of the one in its slot; return the bytes written."""
        others = self._records(inputs, key)
        listed = [record, *(each for each in others if each.slot != record.slot)][:MOST_LISTED]
        return self._save(RECORDS, key, encode_records(key, listed, search=inputs.search))

    def _save(self, kind: str, name: str, data: bytes) -> int:
        """Write a file, or keep it in memory until it can be written; return the bytes written."""
        written = self._write(kind, name, data)
        if not written:
            self._unwritten.keep((kind, name), data, len(data))
        elif self._unwritten.find((kind, name)):
            self._unwritten.keep((kind, name), b"", 0)
        return written

    def publish(self, kind: str, name: str, data: bytes) -> None:
        """Write a file and count its bytes; warn if that fails."""
        self._wrote(self._write(kind, name, data))

    def _write(self, kind: str, name: str, data: bytes) -> int:
        """Write a file without recording it; return its size, 0 after a failure."""
        if not self._folder.writable:
            return 0
        try:
            try:
                self._folder.publish(kind, name, data)
            except FileNotFoundError:  # the cache is new, or was removed
                self._has_locks = False
                self._folder.prepare()
                self._folder.publish(kind, name, data)
        except OSError as error:
            if error.errno in (errno.EISDIR, errno.ENOTEMPTY):
                path = self._folder.file(kind, name)
                self._warn(f"{path} is a folder, but must be a file; remove it")
            else:
                self._degrade(error)
            return 0
        return len(data)

    def _degrade(self, error: OSError) -> None:
        self._folder.write_at = time.monotonic() + _RETRY_SECONDS
        self._warn(
            f"it cannot be written ({error.strerror or error}); builds are kept in memory until "
            "it can. Set RTCOMPILE_CACHE_DIR to a directory of your own with room"
        )

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            warn(f"kernel cache {self._folder.path}: {what}.")

    # --- building once -------------------------------------------------------------------

    @contextmanager
    def building(
        self, inputs: KeyInputs, timeout: float | None = None, *, waits: bool = True
    ) -> Iterator[float | None]:
        """Hold the build lock of `inputs` and yield the rest of `timeout`; 0 if the lock was not obtained."""
        # Search again inside: the last holder may have built the same code, or failed to. Without locks, or if a
        # holder does not finish, two processes build.
        from rtcompile.store import locks  # it imports fcntl, which a hit does not need

        key = inputs.lookup_key
        begin = time.monotonic()
        most = timeout if waits else 0.0
        wait = locks.MAX_WAIT_SECONDS if most is None else most
        with self._guard:
            flight = self._flights.setdefault(key, threading.RLock())
        with locks.held_by_thread(flight, most) as is_first:
            if not is_first:
                yield 0.0
                return
            wait = min(wait - (time.monotonic() - begin), locks.MAX_WAIT_SECONDS)
            with self._lock(key, wait) as locked:
                if locked is False and not waits:
                    yield 0.0
                    return
                yield None if timeout is None else timeout - (time.monotonic() - begin)

    def _lock(self, key: str, seconds: float) -> AbstractContextManager[object]:
        """Return the lock of a key against other processes, or none if the folder cannot be written."""
        from rtcompile.store import locks

        folder = self._folder.file("locks")
        try:
            if self._folder.writable and not self._has_locks:
                if not os.path.isdir(folder):
                    self._folder.prepare()
                self._has_locks = True
        except OSError as error:
            self._degrade(error)
        if not self._folder.writable:
            return nullcontext()
        # Two builds that share a file are rare, and one of them waits.
        path = f"{folder}/{key[:_LOCK_DIGITS]}"
        return locks.machine_wide(path, seconds, self._locked)

    # --- statistics and upkeep ----------------------------------------------------------------

    def _wrote(self, size: int, **counts: int) -> None:
        """Count written bytes, and evict if necessary."""
        if not size:
            return
        count(self._folder, written=size, **counts)
        self._unchecked += size
        is_due = self._unchecked > self.size * _PART_UNCHECKED
        if not (is_due or counts):
            return  # a build's index entry is logged with the next build
        is_long = self._folder.log(take_counts(self._folder.path)) > _MOST_JOURNAL
        if is_long or is_due:
            self._unchecked = 0
            if is_long or self._folder.counts().get("written", 0) > self.size * _PART_WRITTEN:
                self.maintain()

    def maintain(self) -> dict[str, float] | None:
        """Evict down to the limit, sum up the journal, and return all counts; None if they cannot be written."""
        if not self._folder.writable:
            return None
        counts = None
        try:
            self._folder.prepare()
        except OSError as error:
            self._degrade(error)
            return None
        try:
            # This comes first, so concurrent writers find nothing to do.
            counts = self._folder.sum_up(take_counts(self._folder.path))
        except OSError as error:
            self._warn(f"its statistics cannot be written ({error}): builds are not counted")
        if inventory.size(self._folder) > self.size * (1 - _PART_WRITTEN):
            inventory.evict(self._folder, self.size)
        return counts

    def usage(self) -> Usage | None:
        """Return sizes and counts; None if there can be no statistics."""
        counts = self.maintain()
        return None if counts is None else inventory.usage(self._folder, counts)

    def entries(self) -> Iterator[Entry]:
        """Yield every object in the directory."""
        return inventory.entries(self._folder)

    def prune(self, size: int | None = None) -> int:
        """Evict down to `size` bytes (default: the limit), remove leftovers, and return the bytes freed."""
        self.maintain()
        inventory.sweep(self._folder)
        return inventory.evict(self._folder, self.size if size is None else size)

    def clear(self) -> None:
        """Remove everything, in memory and on disk, except the reproducers of compiler crashes."""
        self._unwritten = Memory()
        inventory.empty(self._folder)


forks.in_child(_stores.clear)  # A thread that the child does not have may hold a lock.
