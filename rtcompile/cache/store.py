"""The cache: a question finds its object in memory, then on disk; whatever goes wrong is a miss.

A hit reads two small files, a manifest and an object, and opens no database. Storage that cannot
be used costs one warning and is replaced by memory; it never costs a build.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from rtcompile.cache import files, headers, manifests, objects
from rtcompile.cache.folder import REFUSALS, Folder, UntrustedError
from rtcompile.cache.manifests import Build
from rtcompile.core.includes import Dependencies
from rtcompile.core.key import Question
from rtcompile.core.request import ObjectCode, SearchDir
from rtcompile.errors import CompileError, CompilerCrashed, RtcompileWarning
from rtcompile.settings import Settings

if TYPE_CHECKING:
    from rtcompile.cache.books import Books, Usage
    from rtcompile.cache.inventory import Entry
    from rtcompile.cache.locks import SingleFlight

__all__ = ["Store"]

_T = TypeVar("_T")

_MEMORY_BYTES = 128 << 20
_MOST_UNACCOUNTED = 512  # files

_stores: dict[tuple[str, bool, int], Store] = {}
_MOST_TICKING = 0.1  # seconds
_ticking = threading.Lock()  # one thread of a batch waits for the clock, and the others for it


class _Known(NamedTuple):
    """A build whose object is in memory."""

    build: Build
    obj: ObjectCode


class Store:
    """Objects by question. `open` gives the process's one store of a directory.

    Parameters
    ----------
    path : str
        The cache's directory.
    on_disk : bool
        Whether to use it; else memory is all there is.
    size : int
        Bytes that the directory may hold.
    """

    def __init__(self, path: str, *, on_disk: bool, size: int) -> None:
        self.size = size
        self._folder = Folder(path)
        self._readable = self._writable = on_disk
        self._prepared = self._warned = False
        self._guard = threading.Lock()
        self._memory: OrderedDict[str, list[_Known]] = OrderedDict()
        self._held = 0  # bytes of code in it
        self._flights: SingleFlight | None = None  # made by the first build
        self._started: dict[str, int] = {}
        self._refusing = threading.Lock()
        self._refusals: dict[str, str] | None = None
        self._unaccounted: dict[str, int] = {}  # file written, by size
        self._hits = self._misses = 0
        if on_disk:
            try:
                self._folder.check()
            except UntrustedError as error:
                self._readable = False
                self._degrade(error)

    @classmethod
    def open(cls, settings: Settings) -> Store:
        """Return the store that `settings` describe, the same one each time."""
        key = (settings.cache_dir, settings.cache_on_disk, settings.cache_size)
        store = _stores.get(key)
        if store is None:
            path, on_disk, size = key
            store = _stores.setdefault(key, cls(path, on_disk=on_disk, size=size))
        return store

    # --- asking --------------------------------------------------------------------------

    def find(self, question: Question) -> ObjectCode | None:
        """Return the object that a build of `question` would give now, None if there is none."""
        found = self._search(question)
        if not isinstance(found, ObjectCode):
            return None
        self._hits += 1
        return found

    def why(self, question: Question) -> str:
        """Return in one line why `find` gives nothing: ``"header /x/foo.h changed"``."""
        found = self._search(question)
        return "" if isinstance(found, ObjectCode) else found

    def _search(self, question: Question) -> ObjectCode | str:
        key = question.lookup_key()
        known = self._memory.get(key, [])
        for entry in known:
            if question.serves(entry.build.backend, entry.build.compiler) and headers.same(
                entry.build.dependencies
            ):
                return _hit(entry.obj, entry.build, "memory")
        builds = self._builds(key, question.search)
        for build in _serving(question, builds):
            if headers.same(build.dependencies) and (obj := self._object(build.object_key)):
                self._remember(key, build, obj)
                return _hit(obj, build, "disk")
        # Nothing is as it was by stat: is it by content, here or moved here from another place?
        objects_in_memory = {entry.build.object_key: entry.obj for entry in known}
        builds += [entry.build for entry in known]
        builds += self._builds(question.portable_key(), question.search)
        usable = _serving(question, builds)
        for build in usable:
            fresh = headers.refresh(build.dependencies)
            if fresh is None:
                continue
            obj = objects_in_memory.get(build.object_key) or self._object(build.object_key)
            if obj is not None:
                build = build._replace(dependencies=fresh)
                self._remember(key, build, obj)
                self._publish_manifest(key, build, question.search)
                return _hit(
                    obj, build, "memory" if build.object_key in objects_in_memory else "disk"
                )
        return self._reason(question, builds, usable)

    def _reason(self, question: Question, builds: Sequence[Build], usable: Sequence[Build]) -> str:
        from rtcompile.core import admission  # a hit does not pay for its regular expressions

        if reason := admission.reason_against(question):
            return f"never cached: {reason}"
        if usable:
            return headers.difference(usable[0].dependencies) or "its object was evicted or damaged"
        if builds:
            latest = builds[0]
            wanted = question.backend if question.backend != "auto" else "any compiler here"
            return f"built by {latest.backend} ({latest.compiler}), wanted from {wanted}"
        return "no build of this source with these options"

    def _builds(self, key: str, search: Sequence[SearchDir]) -> list[Build]:
        if not self._readable:
            return []
        path = self._folder.file("manifests", key)
        data = files.read(path)
        if data is None:
            return []
        builds = manifests.decode(data, search)
        if builds is None:
            files.discard(path)
            return []
        files.note_use(path)
        return builds

    def _object(self, key: str) -> ObjectCode | None:
        if not self._readable:
            return None
        path = self._folder.file("objects", key)
        data = files.read(path)
        if data is None:
            return None
        decoded = objects.decode(data)
        if decoded is None:
            files.discard(path)
            return None
        files.note_use(path)
        return decoded[1]

    # --- keeping -------------------------------------------------------------------------

    def add(self, question: Question, obj: ObjectCode, dependencies: Dependencies) -> bool:
        """Keep a build; say whether it could be kept.

        Not kept: what is different in every build, and what a file that changed while the
        compiler ran went into, one cannot tell in which of its versions.
        """
        from rtcompile.core import admission

        key = question.lookup_key()
        started = self._started.get(key)
        if started is not None and dependencies.newest_ns >= started:
            return False
        if dependencies.uncacheable or admission.reason_against(question):
            return False
        backend = obj.build.backend
        path_bound = admission.path_bound(question, obj, dependencies)
        object_key = question.object_key(dependencies, backend=backend, path_bound=path_bound)
        build = Build(backend, question.compilers.get(backend, ""), object_key, dependencies)
        self._remember(key, build, obj)
        data = objects.encode(obj, question.name.rpartition("/")[2], question.summary())
        if self._publish("objects", object_key, data):
            self._publish_manifest(key, build, question.search)
            if not path_bound and admission.portable(dependencies, question.search):
                self._publish_manifest(question.portable_key(), build, question.search)
        self._misses += 1
        pending = self._unaccounted
        if len(pending) > _MOST_UNACCOUNTED or sum(pending.values()) > self.size / 16:
            self.settle()
        return True

    def _publish_manifest(self, key: str, build: Build, search: Sequence[SearchDir]) -> None:
        others = [b for b in self._builds(key, search) if b.object_key != build.object_key]
        self._publish("manifests", key, manifests.encode([build, *others], search))

    def _publish(self, folder: str, name: str, data: bytes) -> bool:
        if not self._writable:
            return False
        try:
            self._prepare()
            try:
                files.publish(self._folder.file(folder, name), data)
            except FileNotFoundError:  # somebody removed the cache under us: make it again
                self._prepared = False
                self._prepare()
                files.publish(self._folder.file(folder, name), data)
        except OSError as error:
            self._degrade(error)
            return False
        with self._guard:
            self._unaccounted[f"{folder}/{name}"] = len(data)
        return True

    def _prepare(self) -> None:
        if not self._prepared:
            self._folder.prepare()
            self._prepared = True

    def _degrade(self, error: OSError) -> None:
        self._writable = False
        self._warn(
            f"it cannot be written ({error.strerror or error}); builds are kept in memory until "
            "this process ends. Set RTCOMPILE_CACHE_DIR to a directory of your own with room"
        )

    def _warn(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            text = f"kernel cache {self._folder.path}: {what}."
            warnings.warn(text, RtcompileWarning, stacklevel=2)

    def _remember(self, key: str, build: Build, obj: ObjectCode) -> None:
        with self._guard:
            before = self._memory.pop(key, [])
            others = [known for known in before if known.build.object_key != build.object_key]
            now = [_Known(build, obj), *others][: manifests.MOST_BUILDS]
            self._memory[key] = now
            self._held += _weight(now) - _weight(before)
            while self._held > _MEMORY_BYTES and len(self._memory) > 1:
                _, dropped = self._memory.popitem(last=False)
                self._held -= _weight(dropped)

    # --- building once -------------------------------------------------------------------

    @contextmanager
    def building(self, question: Question, timeout: float | None = None) -> Iterator[float | None]:
        """Hold the right to build `question`: one thread of one process on this machine.

        Yields what is left of `timeout` (seconds) after waiting for others that build the same.
        Where nothing is left, the right is not had. Ask `find` again inside: whoever held it before
        may have built the same. A thread that waited while the compiler refused the source gets that
        error. Storage without locks, or a holder that never ends, makes for a second build, not for
        an end of building.
        """
        from rtcompile.cache import locks  # with fcntl, what a hit does not pay

        key = question.lookup_key()
        begin = time.monotonic()
        patience = locks.PATIENCE if timeout is None else timeout
        with self._guard:
            flights = self._flights = self._flights or locks.SingleFlight()
        with flights.flight(key, _would_fail_again, timeout) as alone:
            if not alone:
                yield 0.0
                return
            lock: AbstractContextManager[object] = nullcontext()
            if self._writable:
                try:
                    self._prepare()
                except OSError as error:
                    self._degrade(error)
                else:
                    patience = min(patience - (time.monotonic() - begin), locks.PATIENCE)
                    lock = locks.machine_wide(self._folder.file("locks", key), patience)
            with lock:
                self._started[key] = _next_tick()
                try:
                    yield None if timeout is None else timeout - (time.monotonic() - begin)
                finally:
                    self._started.pop(key, None)

    # --- what NVRTC could not do ---------------------------------------------------------

    def refusal(self, question: Question) -> str | None:
        """Return why NVRTC could not build `question`, None if it is not known to have failed."""
        return self._known_refusals().get(_refusal_key(question))

    def remember_refusal(self, question: Question, reason: str) -> None:
        """Note that this build of NVRTC cannot build `question`, so that NVCC is asked at once."""
        key = _refusal_key(question)
        self._known_refusals()[key] = reason
        self._ask_books(lambda books: books.remember_refusal(key, reason))

    def _known_refusals(self) -> dict[str, str]:
        with self._refusing:
            if self._refusals is None:
                # The first miss of a process does not open a database, 30 ms, to find none.
                there = os.path.exists(self._folder.file(*REFUSALS))
                found = self._ask_books(lambda books: books.refusals()) if there else None
                self._refusals = found or {}
            return self._refusals

    # --- books and upkeep ----------------------------------------------------------------

    def settle(self) -> None:
        """Enter what was built and found since the last time into the books; evict what is too much.

        Called when much is unaccounted for, and when the process ends.
        """
        with self._guard:
            built, self._unaccounted = self._unaccounted, {}
            hits, self._hits = self._hits, 0
            misses, self._misses = self._misses, 0
        if built or misses:
            self._ask_books(lambda books: books.built(built, hits=hits, misses=misses))
        elif hits and self._writable:
            self._folder.note_hits(hits)

    def usage(self) -> Usage | None:
        """Return sizes and counts, None where no books can be kept."""
        self.settle()
        return self._ask_books(lambda books: books.usage())

    def entries(self) -> Iterator[Entry]:
        """Yield every object in the directory."""
        from rtcompile.cache import inventory

        return inventory.entries(self._folder)

    def verify(self) -> list[str]:
        """Read every file, remove the damaged ones; return their paths."""
        from rtcompile.cache import inventory

        paths = [self._folder.file(path) for path in inventory.damaged(self._folder)]
        for path in paths:
            files.discard(path)
        return paths

    def prune(self, size: int | None = None) -> int:
        """Evict down to `size` bytes (default: the limit), sweep up; return the bytes freed."""
        from rtcompile.cache import inventory

        self.settle()
        inventory.sweep(self._folder)
        limit = self.size if size is None else size
        return self._ask_books(lambda books: books.evict(limit)) or 0

    def clear(self) -> None:
        """Forget everything, in memory and on disk."""
        from rtcompile.cache import inventory

        with self._guard:
            self._memory.clear()
            self._held = 0
            self._unaccounted.clear()
            self._refusals = None
        inventory.empty(self._folder)

    def export(self, path: str) -> int:
        """Copy all that verifies into a cache directory at `path`; return the number of files."""
        from rtcompile.cache import inventory

        return inventory.export(self._folder, Folder(path))

    def _ask_books(self, ask: Callable[[Books], _T]) -> _T | None:
        if not self._writable:
            return None
        from rtcompile.cache.books import Books, BooksError  # 16 ms that a hit does not pay

        try:
            self._prepare()
            return ask(Books(self._folder, self.size))
        except BooksError as error:
            # Objects are kept all the same; only their size is nobody's concern meanwhile.
            self._warn(
                f"its books cannot be written ({error}): its size limit waits until they can"
            )
        except OSError as error:
            self._degrade(error)
        return None


def _serving(question: Question, builds: Sequence[Build]) -> list[Build]:
    return [build for build in builds if question.serves(build.backend, build.compiler)]


def _weight(known: Sequence[_Known]) -> int:
    return sum(len(entry.obj.code) for entry in known)


def _refusal_key(question: Question) -> str:
    return f"{question.lookup_key()} {question.compilers.get('nvrtc', '')}"


def _hit(obj: ObjectCode, build: Build, where: str) -> ObjectCode:
    # Why NVCC was used stays true; why the build was a miss does not.
    why = obj.build.why if obj.build.backend == "nvcc" else ""
    headers = build.dependencies.headers
    return replace(obj, build=replace(obj.build, headers=headers, hit=where, why=why))


def _would_fail_again(error: BaseException) -> bool:
    return isinstance(error, CompileError) and not isinstance(error, CompilerCrashed)


def _next_tick() -> int:
    """Return the time, once the file clock has reached it (4 ms at most).

    A header written before it carries an earlier time, one written from now on a later one. Since
    Linux 6.13 a file's time may be finer than the file clock, and so ahead of it.
    """
    now = time.time_ns()
    deadline = time.monotonic() + _MOST_TICKING
    with _ticking:
        while (tick := headers.file_clock_ns()) < now:
            if time.monotonic() > deadline:
                return tick  # The clock was stepped back: so will be the times of files.
            time.sleep(0.0005)
    return now


def _after_fork() -> None:
    # A thread of the parent may hold any of their locks, and it is not here to release it.
    global _ticking
    _ticking = threading.Lock()
    _stores.clear()


def _settle() -> None:
    for store in _stores.values():
        store.settle()


atexit.register(_settle)
os.register_at_fork(after_in_child=_after_fork)
