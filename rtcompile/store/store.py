"""The local cache: finds objects by their key inputs, in memory or on disk. Any problem counts as a miss.

A hit reads two small files, a manifest and an object, and opens no database. If the storage cannot
be used, the user gets one warning and memory is used instead; no build fails because of it.
"""

from __future__ import annotations

import errno
import functools
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from rtcompile import forks
from rtcompile.errors import warn
from rtcompile.files import fileset
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import SearchDir, relative_to
from rtcompile.files.sealed import UntrustedError
from rtcompile.named import NamedTuple, computed_once
from rtcompile.request import object_code
from rtcompile.request.key import EITHER, KeyInputs, is_portable, path_bound, reason_against
from rtcompile.request.object_code import ObjectCode, hit
from rtcompile.settings import Settings
from rtcompile.store import inventory
from rtcompile.store.folder import Folder, Memory, count, take_counts
from rtcompile.store.inventory import Entry, Usage

if TYPE_CHECKING:
    from rtcompile.store.negative import Negative

_RETRY_SECONDS = 10.0  # time before writing to a folder is tried again after a failure

# The journal of all processes is summed up when it reaches this size, or when this fraction of the limit was written,
# which is what eviction leaves free. A process checks it after writing at most _PART_UNCHECKED of the limit.
_MOST_JOURNAL = 32 << 10
_PART_WRITTEN = 1 / 16
_PART_UNCHECKED = 1 / 1024

_LOCK_DIGITS = 3  # of a key, which name its lock file
_MERGE_SECONDS = 1.0  # wait for another writer of the same manifest
_MANIFESTS = ("manifests", "portable")  # by the lookup key, and by the key without paths

_stores: dict[tuple[str, bool, int, bool], Store] = {}


# --- Manifests: each lists, under a lookup key, builds and the files that they depend on ------------

# A path is stored as the index of its search directory and the rest. Portable manifests, whose readers substitute
# their own directories, have the same format.

MOST_BUILDS = 4  # of one lookup key: enough for an edit and its revert, each with two compilers
MOST_LISTED = 16  # of all lookup keys that share a manifest


class ManifestEntry(NamedTuple):
    """One build: its compiler, object key and dependencies, with the stats of the last look-up that compared them."""

    backend: str
    compiler: str
    object_key: str
    dependencies: FileSet
    not_kept: str = ""  # why it was not kept; it then has neither an object nor files


def encode_manifest(
    key: str, builds: Sequence[ManifestEntry], search: Sequence[SearchDir]
) -> bytes:
    """Return the content of the file under `key` for `builds`, the latest first."""
    split_path = relative_to(tuple(search))

    def stored(path: str) -> str:
        position, rest = split_path(path)
        return f"{position if position >= 0 else ''}:{rest}"

    return fileset.encode_records(
        "manifest",
        key,
        [((*b[:3], b.not_kept), b.dependencies.moved(stored)) for b in builds[:MOST_LISTED]],
    )


@functools.lru_cache(maxsize=32)  # a miss reads its manifest three times, meanwhile others theirs
def decode_manifest(
    key: str, data: bytes, search: tuple[SearchDir, ...]
) -> list[ManifestEntry] | None:
    """Return the builds in the file found under `key`, latest first; None if it does not verify."""
    found = fileset.decode_records("manifest", key, data)
    directories = [d.path.rstrip("/") + "/" for d in search]

    def here(path: str) -> str:
        position, _, rest = path.partition(":")
        return directories[int(position)] + rest if position else rest

    builds = []
    try:
        for (backend, compiler, object_key, not_kept), files in found or ():
            dependencies = files.moved(here)
            hash(dependencies)  # raises if the fields do not fit together
            builds.append(ManifestEntry(backend, compiler, object_key, dependencies, not_kept))
    except (struct.error, StopIteration, IndexError, ValueError):
        return None
    return None if found is None else builds


def object_file(inputs: KeyInputs, object_key: str, obj: ObjectCode) -> bytes:
    """Return the content of a build's object file."""
    program = inputs.name.rpartition("/")[2]
    return object_code.encode(object_key, obj, program, inputs.summary())


# --- The cache of one directory ----------------------------------------------------------------------


class Store:
    """The cache of one directory, by key inputs; `open` returns one store per directory."""

    def __init__(self, path: str, *, on_disk: bool, size: int, writable: bool = True) -> None:
        self.size = size
        self._folder = Folder(path, writable=on_disk and writable, readable=on_disk)
        self._warned = False
        self._guard = threading.RLock()
        self._memory = Memory()
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
        return found if isinstance(found := self.search(inputs), ObjectCode) else None

    def why(self, inputs: KeyInputs) -> str:
        """Return in one line why `find` returns None: ``"header /x/foo.h changed"``."""
        found = self.search(inputs, counts=False)
        return "" if isinstance(found, ObjectCode) else found()

    def search(self, inputs: KeyInputs, *, counts: bool = True) -> ObjectCode | Callable[[], str]:
        """Return the object as `find` does, or a function that returns the reason as `why` does."""
        known = self._known(inputs)
        in_memory = {build.object_key: obj for build, obj in known}
        builds, usable = [], []
        for build in chain([entry for entry, _ in known], self._stored(inputs)):
            builds.append(build)
            files = build.dependencies
            if build.not_kept or not inputs.serves(build.backend, build.compiler):
                continue
            usable.append(build)
            fresh = files.refreshed()
            obj = in_memory.get(build.object_key)
            where = "disk" if obj is None else "memory"
            if fresh is not None and obj is None:
                obj = self._folder.object(build.object_key)
            if fresh is None or obj is None:
                continue
            if fresh is not files:
                build = build._replace(dependencies=fresh)
                if written := self._publish_manifest(inputs, build, obj):
                    self._wrote(written)
            self._remember(inputs, build, obj)
            if counts:
                count(self._folder, hits=1)
            return hit(obj, fresh, where)
        return partial(self._reason, inputs, builds, usable)

    def _reason(
        self, inputs: KeyInputs, builds: Sequence[ManifestEntry], usable: Sequence[ManifestEntry]
    ) -> str:
        if reason := reason_against(inputs) or (builds[0].not_kept if builds else ""):
            return f"never cached: {reason}"
        if usable:
            return usable[0].dependencies.difference() or "its object was evicted or damaged"
        if builds:
            latest = builds[0]
            wanted = "any compiler here" if inputs.backend in EITHER else inputs.backend
            return f"built by {latest.backend} ({latest.compiler}), wanted from {wanted}"
        return "no build of this source with these options"

    def _stored(self, inputs: KeyInputs) -> Iterator[ManifestEntry]:
        """Yield the builds on disk; the object of one that read no file is found without a manifest."""
        key = inputs.key_without_files
        if key and self._folder.has("objects", key):
            compiler = inputs.compilers["nvrtc"]
            yield ManifestEntry("nvrtc", compiler, key, FileSet())
        for kind in _MANIFESTS:
            yield from self._builds(inputs, kind)[1]

    def _builds(self, inputs: KeyInputs, kind: str) -> tuple[str, list[ManifestEntry]]:
        """Return the key of a manifest, and the builds that it lists."""
        key = inputs.portable_key if kind == "portable" else inputs.lookup_key
        decode = partial(decode_manifest, search=inputs.search)
        return key, self._folder.decoded(kind, key, decode) or []

    # --- keeping -------------------------------------------------------------------------

    def add(self, inputs: KeyInputs, obj: ObjectCode, dependencies: FileSet) -> str:
        """Keep a build, or the reason why it is not kept; return that reason, ``""`` if it was kept."""
        backend = obj.build.backend
        if reason := dependencies.uncacheable or reason_against(inputs):
            build = ManifestEntry(backend, inputs.compilers.get(backend, ""), "", FileSet())
            key, others = self._builds(inputs, "manifests")
            builds = [build._replace(not_kept=reason), *(o for o in others if not o.not_kept)]
            self.publish("manifests", key, encode_manifest(key, builds, inputs.search))
            return reason
        bound = path_bound(inputs, obj, dependencies)
        object_key = inputs.object_key(dependencies, backend=backend, path_bound=bound)
        build = ManifestEntry(backend, inputs.compilers.get(backend, ""), object_key, dependencies)
        data = object_file(inputs, object_key, obj)
        self._keep(inputs, build, obj, data, misses=1)
        return ""

    def adopt(self, inputs: KeyInputs, build: ManifestEntry, data: bytes) -> ObjectCode | None:
        """Keep another machine's build and return it; None if `data` is not its object."""
        decoded = object_code.decode(build.object_key, data)
        if decoded is None:
            return None
        self._keep(inputs, build, decoded[1], data, fetched=1)
        return hit(decoded[1], build.dependencies, "remote")

    def entry_of(self, inputs: KeyInputs, obj: ObjectCode) -> ManifestEntry | None:
        """Return the manifest entry of a build that was just made or found; None if it is not in memory."""
        return next((build for build, kept in self._known(inputs) if kept.code is obj.code), None)

    def _known(self, inputs: KeyInputs) -> list[tuple[ManifestEntry, ObjectCode]]:
        """Return the builds of these inputs whose objects are in memory, the latest first."""
        return self._memory.find(inputs.lookup_key) or []

    def _remember(self, inputs: KeyInputs, build: ManifestEntry, obj: ObjectCode) -> None:
        key = inputs.lookup_key
        with self._guard:
            others = [
                known for known in self._known(inputs) if known[0].object_key != build.object_key
            ]
            now = [(build, obj), *others][:MOST_BUILDS]
            self._memory.keep(key, now, sum(len(kept.code) for _, kept in now))

    def _keep(
        self, inputs: KeyInputs, build: ManifestEntry, obj: ObjectCode, data: bytes, **counted: int
    ) -> None:
        self._remember(inputs, build, obj)
        written = self._write("objects", build.object_key, data)
        if written:
            if build.object_key != inputs.key_without_files:
                written += self._publish_manifest(inputs, build, obj)
            self._wrote(written, **counted)

    def keep_source(self, name: str, source: str) -> None:
        """Write a source to the path in the line information, under `name`, which contains its digest."""
        if self._folder.writable and not os.path.lexists(self._folder.file("sources", name)):
            self.publish("sources", name, source.encode("utf-8", "replace"))

    def _publish_manifest(self, inputs: KeyInputs, build: ManifestEntry, obj: ObjectCode) -> int:
        """Add a build to the portable manifest if no path matters, otherwise to the manifest of its lookup key."""
        kind = _MANIFESTS[is_portable(inputs, obj, build.dependencies)]
        # Builds with other paths have other build locks, and would drop each other's entries.
        is_locked = kind == "portable"
        with self._lock(inputs.portable_key, _MERGE_SECONDS) if is_locked else nullcontext():
            key, others = self._builds(inputs, kind)
            builds = [build, *(each for each in others if each.object_key != build.object_key)]
            return self._write(kind, key, encode_manifest(key, builds, inputs.search))

    def publish(self, kind: str, name: str, data: bytes) -> bool:
        """Write a file; return whether that worked, after a warning if it did not."""
        written = self._write(kind, name, data)
        if written:
            self._wrote(written)
        return written > 0

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
        # Call `find` again inside, and look into the negative cache: the last holder may have built the same, in
        # vain too. Without locks, or if a holder does not finish, two processes build.
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

    @computed_once
    def negative(self) -> Negative:
        """The negative cache."""
        from rtcompile.store.negative import Negative  # a hit does not need it

        return Negative(self._folder, self.publish)

    # --- statistics and upkeep ----------------------------------------------------------------

    def _wrote(self, size: int, **counts: int) -> None:
        """Count written bytes, and evict if necessary."""
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

    def verify(self) -> list[str]:
        """Read every file, remove damaged and untrusted ones, and return their paths."""
        unusable = [path for path, is_foreign in inventory.unusable(self._folder) if not is_foreign]
        for path in unusable:
            self._folder.discard(*path.split("/"))
        return [self._folder.file(path) for path in unusable]

    def prune(self, size: int | None = None) -> int:
        """Evict down to `size` bytes (default: the limit), remove leftovers, and return the bytes freed."""
        self.maintain()
        inventory.sweep(self._folder)
        return inventory.evict(self._folder, self.size if size is None else size)

    def clear(self) -> None:
        """Remove everything, in memory and on disk, except the reproducers of compiler crashes."""
        with self._guard:
            self._memory = Memory()
            self.__dict__.pop("negative", None)
        inventory.empty(self._folder)


forks.in_child(_stores.clear)  # A thread that the child does not have may hold a lock.
