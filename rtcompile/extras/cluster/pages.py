"""Builds for other machines: which of a shared store's builds fit the files here, and how a build is sent.

Each lookup key and version of NVRTC has a *page*: the dependency lists of builds that read different files, with
their code inlined if small. A build is used only if the same files with the same contents are found here. If a
header's contents differ locally, the object is fetched by the object key for the local contents. A build that depends
on its path is never shared. A batch on an executor sends its builds in the same form.

A local hit does not use this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from rtcompile import CompileRequest, ExecutorError, InvalidRequest, RtcompileError
from rtcompile.build.pipeline import build as compiled
from rtcompile.build.planned import plan
from rtcompile.errors import shown, unchained
from rtcompile.extras.cluster.level import Level
from rtcompile.extras.cluster.stores import StoreEntry, Stores, current
from rtcompile.files import fileset, sealed
from rtcompile.named import NamedTuple
from rtcompile.request import key as keys
from rtcompile.request.key import KeyInputs
from rtcompile.request.object_code import MOST_LISTED, Found, Record, decode_records, encode_records
from rtcompile.settings import Settings
from rtcompile.store.store import Store, object_file

if TYPE_CHECKING:
    from rtcompile.build.batch import BuildFuture

SMALL = 32 << 10  # bytes; an object of up to this size is inlined in its page


# --- pages -----------------------------------------------------------------------------------------


class Page(NamedTuple):
    """The value under a key of a shared store: the records of builds, and the object of one of them, if it is small."""

    records: bytes
    object: bytes = b""

    def packed(self, key: str) -> bytes:
        """Return the page as stored under `key`."""
        return sealed.seal("page", key, [*self])

    @classmethod
    def read(cls, level: Level, kind: str, key: str) -> Page | None:
        """Return the page that a store has under `key`; None if it does not verify."""
        data = level.get(kind, key)
        fields = sealed.unseal("page", key, data) if data is not None else None
        return cls(*fields) if fields and len(fields) == len(cls._fields) else None


def _merged(key: str, newer: bytes, older: bytes) -> bytes:
    """Return both's records, the newer first; b"" if each newer build reads the same files as some older one."""
    new, old = (decode_records(key, data) or () for data in (newer, older))
    files = [*map(_names, old)]
    if all(_names(build) in files for build in new):
        return b""
    return encode_records(key, [*new, *old][:MOST_LISTED])


def _names(build: Record) -> tuple[object, ...]:
    """Return a build's backend and the names of its files, without their contents."""
    fields = build.files.packed(())
    return (build.backend, *fields[: fileset.DIGESTS], *fields[fileset.DIGESTS + 1 :])


# --- one build in the stores -------------------------------------------------------------------------


def sharing(inputs: KeyInputs, store: Store) -> Sharing | None:
    """Return a build's access to this process's stores; None if it cannot be shared, or there are none."""
    stores = current() if keys.may_travel(inputs) else None
    return None if stores is None else Sharing(stores, inputs, store)


class Sharing:
    """One build in the shared stores: found there, or made under a lease and pushed."""

    def __init__(self, stores: Stores, inputs: KeyInputs, store: Store) -> None:
        self._stores, self._inputs, self._store = stores, inputs, store
        # This key has no version of NVCC, so a node without NVCC finds what NVCC built elsewhere.
        nvrtc = "" if inputs.backend == "nvcc" else inputs.compilers.get("nvrtc", "")
        fields = keys.field("page", inputs.portable_key), keys.field("nvrtc", nvrtc)
        self._key = keys.digest(fields)  # of the page
        self._lease_key = self._key  # or the object key for the local contents, if known
        self._pages: dict[Level, Page | None] = {}  # of each store, to which a new build is added
        self._begin = time.monotonic()

    def find(self, *, is_first: bool = True) -> Found | None:
        """Return the build of the first store that has it, written to the local cache; only the first miss counts."""
        stores = self._stores
        for at, level in enumerate(stores.levels):
            begin = time.monotonic()
            found = self._find(level)
            if found is None:
                if is_first:
                    level.miss()
                continue
            level.hit(found.obj.build.compiled_in, time.monotonic() - begin)
            if at and stores.writes:  # copy it to the stores before this one
                stores.push(partial(self._entries, found), levels=stores.levels[:at])
            return found
        return None

    def build(
        self, compile: Callable[[float | None], Found], seconds: float | None, waits: bool
    ) -> Found:
        """Return the result of `compile`; if another node builds, wait for its result, or raise `Busy`."""
        stores, program = self._stores, self._inputs.name.rpartition("/")[2]
        look = partial(self.find, is_first=False)
        taken = stores.lease(self._lease_key, look, seconds, program, waits, self._begin)
        if isinstance(taken, Found):
            return taken
        left = None if seconds is None else seconds - (time.monotonic() - self._begin)
        entries = None
        try:
            built = compile(left)
            entries = partial(self._entries, built) if stores.writes else None
        finally:  # in any case the lease ends
            stores.push(entries, partial(stores.end_lease, taken))
        for level in stores.levels:
            level.built(built.obj.build.compiled_in)
        return built

    def _find(self, level: Level) -> Found | None:
        """Return one store's build, after writing it to the local cache."""
        page = self._pages[level] = Page.read(level, "manifest", self._key)
        if page is None:
            return None
        if (got := _unpack(self._inputs, self._store, page)) is not None:
            return got
        named = [build.object_key for build in _usable(self._inputs, page.records)]
        for name in dict.fromkeys(chain(named, self._keys_here(page))):
            if name not in named:
                self._lease_key = name
            apart = Page.read(level, "object", name)
            if (got := _unpack(self._inputs, self._store, apart)) is not None:
                return got
        return None

    def _keys_here(self, page: Page) -> Iterator[str]:
        """Yield the object keys these builds would have with the local header contents."""
        for build in _builds_in(self._inputs, page.records):
            files = build.files.with_contents_here()
            if files is not None and build.backend in self._inputs.compilers:
                yield self._inputs.object_key(files, backend=build.backend)

    def _entries(self, found: Found, level: Level) -> list[StoreEntry] | None:
        """Return the entries to write to a store for a build; None if others cannot use it."""
        own, name, key = _packed(self._inputs, found), found.record.object_key, self._key
        if own is None:
            return None
        # The page that `_find` read is still current, since this process holds the build's lease.
        page = self._pages[level] or Page(b"")
        if not page.records and len(own.object) <= SMALL:
            return [("manifest", key, own.packed(key))]
        new = page._replace(records=_merged(self._inputs.portable_key, own.records, page.records))
        # The object is written before the page that names it.
        listed = [("manifest", key, new.packed(key))] if new.records else []
        return [("object", name, own.packed(name)), *listed]


# --- sending a build to another machine --------------------------------------------------------------------------


def _packed(inputs: KeyInputs, found: Found) -> Page | None:
    build = found.record
    if not build.object_key or not keys.is_portable(inputs, found.obj, build.files):
        return None
    data = object_file(inputs, build.object_key, found.obj)
    own = build._replace(files=build.files.without_stats())
    records = encode_records(inputs.portable_key, [own], search=inputs.search)
    return Page(records, data)


def _unpack(inputs: KeyInputs, store: Store, page: Page | None) -> Found | None:
    """Write the page's inlined build to the cache if it fits the local files; None if none does."""
    if page is not None and page.object:
        for build in _usable(inputs, page.records):
            found = store.adopt(inputs, build, page.object)
            if found is not None:
                return found
    return None


def _usable(inputs: KeyInputs, records: bytes) -> Iterator[Record]:
    """Yield the records of builds whose headers have the same contents here."""
    for build in _builds_in(inputs, records):
        if inputs.serves(build.backend, build.compiler):
            fresh = build.files.current()
            if fresh is not None:
                yield build._replace(files=fresh)


def _builds_in(inputs: KeyInputs, records: bytes) -> tuple[Record, ...]:
    """Return a page's records of builds."""
    # Their files have no stat signatures: another machine's say nothing about the files here.
    return decode_records(inputs.portable_key, records, inputs.search) or ()


# --- builds of a batch on an executor: each is one task, with the settings and cache of its machine ------------


def submit_to(executor: Any) -> Callable[[CompileRequest, Mapping[str, Any]], BuildFuture]:
    """Return a function that starts a build on an executor, with overrides of the settings there.

    A build that is already running when it is cancelled may continue there.
    """
    from rtcompile.build.batch import BuildFuture  # a look-up in the stores does not need it

    # A Dask client has an adapter, since its own futures are of another type.
    adapter = getattr(executor, "get_executor", None)
    if callable(adapter):
        executor = adapter(pure=False)
    if not callable(getattr(executor, "submit", None)):
        raise InvalidRequest(
            "executor must have submit(), as a concurrent.futures.Executor has (mpi4py's too), or "
            f"be a Dask Client, not {shown(executor)}"
        )

    def start(request: CompileRequest, overrides: Mapping[str, Any]) -> BuildFuture:
        future = BuildFuture()
        theirs: Future[Any] = Future()
        try:
            theirs = executor.submit(_work, request, overrides)
        except Exception as error:  # noqa: BLE001  # an engine that was shut down may raise anything
            theirs.set_exception(error)
        theirs.add_done_callback(partial(_take, future, request, overrides))
        future.add_done_callback(lambda own: own.cancelled() and theirs.cancel())
        return future

    return start


def _take(
    future: BuildFuture, request: CompileRequest, overrides: Mapping[str, Any], theirs: Future[Any]
) -> None:
    """Set a build's future to its result on an executor."""
    with suppress(InvalidStateError):  # it was cancelled meanwhile
        try:
            outcome, packed = theirs.result()
        except BaseException as error:  # noqa: BLE001  # an engine and its worker's Python may raise anything
            future.set_exception(_lost(error))
            return
        if isinstance(outcome, RtcompileError):
            future.set_exception(unchained(outcome))
            return
        if packed is not None:
            with suppress(RtcompileError):  # there may be no toolkit here
                _keep(request, overrides, packed)
        future.set_result(outcome)


def _work(request: CompileRequest, overrides: Mapping[str, Any]) -> tuple[Any, Page | None]:
    """Build on an executor's worker; return the code or error, and the code packed for the submitter's cache."""
    try:
        settings = Settings.from_environ().override(**overrides)
        code = compiled(request, settings)
        inputs = plan(request, settings).key_inputs
        found = Store.open(settings).search(inputs, counts=False)
        return code, _packed(inputs, found) if isinstance(found, Found) else None
    except RtcompileError as error:
        return unchained(error), None


def _keep(request: CompileRequest, overrides: Mapping[str, Any], packed: Page) -> None:
    """Write a result to this machine's cache."""
    settings = Settings.from_environ().override(**overrides)
    store = Store.open(settings)
    inputs = plan(request, settings).key_inputs
    if settings.jit and store.find(inputs) is None:
        _unpack(inputs, store, packed)


def _lost(error: BaseException) -> ExecutorError:
    lines = str(error).strip().splitlines()
    what = f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
    return ExecutorError(
        f"the executor could not run this build: {what}. Its workers need rtcompile of the same "
        "version, and memory for a compiler (0.4 GB for CuTe)"
    )
