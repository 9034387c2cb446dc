"""Builds for other machines: which of a shared store's builds fit the files here, and what a build is sent as.

Each lookup key and version of NVRTC has a *page*: the dependency lists of builds that read different files, with
their code inlined if small. A build is used only if the same files with the same contents are found here. If a
header's contents differ locally, compute the object key for those contents and fetch that. A build that depends on
its path is never shared.

A local hit does not use this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain

from rtcompile import CompileRequest, RtcompileError
from rtcompile.build import elsewhere
from rtcompile.files import sealed
from rtcompile.named import NamedTuple
from rtcompile.store.shared import (
    MOST_LISTED,
    KeyInputs,
    ObjectCode,
    Record,
    Store,
    decode_records,
    encode_records,
    fileset,
    object_file,
)
from rtcompile.store.shared import key as keys

SMALL = 32 << 10  # bytes; an object of up to this size is inlined in its page

StoreEntry = tuple[str, str, bytes]  # kind, key, data
Read = Callable[[str, str], "bytes | None"]  # returns an entry's data by its kind and key
ReadMany = Callable[[str, Sequence[str]], dict[str, bytes]]


# --- pages -----------------------------------------------------------------------------------------


class Page(NamedTuple):
    """The value under a key of a shared store: the records of builds, and the small ones' objects by key."""

    records: bytes
    objects: dict[str, bytes]

    def packed(self, key: str) -> bytes:
        """Return the page as stored under `key`."""
        pairs = [each for name, data in self.objects.items() for each in (name.encode(), data)]
        return sealed.seal("page", key, [self.records, *pairs])

    @classmethod
    def unpacked(cls, key: str, data: bytes | None) -> Page | None:
        """Return the page from `packed` data; None if it does not verify."""
        fields = sealed.unseal("page", key, data) if data is not None else None
        if not fields or not len(fields) % 2:
            return None
        names = [name.decode("ascii", "replace") for name in fields[1::2]]
        return cls(fields[0], dict(zip(names, fields[2::2], strict=True)))


def page_key(inputs: KeyInputs) -> str:
    """Return the key of a build's page."""
    # A node without NVCC uses what NVCC built elsewhere.
    nvrtc = "" if inputs.backend == "nvcc" else inputs.compilers.get("nvrtc", "")
    return keys.digest([keys.field("page", inputs.portable_key), keys.field("nvrtc", nvrtc)])


def merged(key: str, newer: bytes, older: bytes = b"") -> bytes:
    """Return the records of both, the newer first, without stats."""
    newest = _by_object(key, newer)
    builds = newest | _by_object(key, older) | newest
    return encode_records(key, [*builds.values()][:MOST_LISTED])


def has_files_of(key: str, data: bytes, other: bytes) -> bool:
    """Return whether the first has records of builds with the other's files, whatever their contents."""
    files = [_names(build) for build in _by_object(key, data).values()]
    return all(_names(build) in files for build in _by_object(key, other).values())


def _names(build: Record) -> tuple[object, ...]:
    """Return a build's backend and files, without their contents."""
    fields = build.files.packed(())
    return (build.backend, *fields[: fileset.DIGESTS], *fields[fileset.DIGESTS + 1 :])


def _by_object(key: str, data: bytes) -> dict[str, Record]:
    """Return the records of builds that were kept by their object keys, without stats."""
    kept = [each for each in decode_records(key, data) or () if each.object_key]
    return {each.object_key: each.replace(files=each.files.without_stats()) for each in kept}


# --- one build in the stores -------------------------------------------------------------------------


class SharedBuild:
    """One build, as it is looked for in shared stores and written to them."""

    def __init__(self, inputs: KeyInputs, store: Store) -> None:
        self.program = inputs.name.rpartition("/")[2]
        self._inputs, self._store = inputs, store
        self._key = page_key(inputs)
        self.lease_key = self._key  # or the object key for the local contents, if known
        self._pages: dict[object, Page | None] = {}  # of each store, to which a new build is added

    def find(self, shared: object, read: Read) -> ObjectCode | None:
        """Return one shared store's build, read by `read`, after writing it to the local cache."""
        page = self._pages[shared] = Page.unpacked(self._key, read("manifest", self._key))
        if page is None:
            return None
        if (got := unpack(self._inputs, self._store, page)) is not None:
            return got
        named = [build.object_key for build in _usable(self._inputs, page.records)]
        for name in dict.fromkeys(chain(named, self._keys_here(page))):
            if name not in named:
                self.lease_key = name
            apart = Page.unpacked(name, read("object", name))
            if (got := unpack(self._inputs, self._store, apart)) is not None:
                return got
        return None

    def _keys_here(self, page: Page) -> Iterator[str]:
        """Yield the object keys these builds would have with the local header contents."""
        for build in _builds_in(self._inputs, page.records):
            files = build.files.with_contents_here()
            if files is not None and build.backend in self._inputs.compilers:
                yield self._inputs.object_key(files, backend=build.backend)

    def entries_of(self, code: ObjectCode) -> Callable[[object, Read], list[StoreEntry]] | None:
        """Return a function that returns the entries to write to a store for a build; None if it is not portable."""
        build = _portable(self._inputs, self._store, code)
        if build is None:
            return None

        def entries(shared: object, read: Read) -> list[StoreEntry]:
            own, name = _pack(self._inputs, build, code), build.object_key
            # A page with builds is not read again, since the writer holds this build's lease.
            if shared not in self._pages:
                self.find(shared, read)
            key, page = self._key, self._pages[shared]
            if page is None and len(own.objects[name]) <= SMALL:
                return [("manifest", key, own.packed(key))]
            separate = ("object", name, own.packed(name))  # written before the page that names it
            if page is None:
                return [separate, ("manifest", key, own._replace(objects={}).packed(key))]
            portable_key = self._inputs.portable_key
            if has_files_of(portable_key, page.records, own.records):
                return [separate]
            both = merged(portable_key, own.records, page.records)
            return [separate, ("manifest", key, page._replace(records=both).packed(key))]

        return entries


def fetch(stores: Sequence[ReadMany], requests: Iterable[CompileRequest]) -> tuple[int, int, int]:
    """Fetch builds by the stores' functions, in few requests; return how many came, were cached, and are missing."""
    settings = elsewhere.Settings.from_environ()
    store = Store.open(settings)
    left: dict[str, KeyInputs] = {}
    count = there = 0
    for request in requests:
        count += 1
        # Requests that cannot be planned fail when they are used.
        with suppress(RtcompileError):
            inputs = elsewhere.key_inputs(request, settings)
            if store.find(inputs) is not None:
                there += 1
            elif keys.may_travel(inputs):
                left[page_key(inputs)] = inputs
    came = len(left)
    for read_many in stores:
        separate: dict[str, KeyInputs] = {}
        for key, data in read_many("manifest", [*left]).items():
            page, inputs = Page.unpacked(key, data), left[key]
            if unpack(inputs, store, page) is not None:
                del left[key]
            elif page is not None:
                builds = _usable(inputs, page.records)
                separate.update((build.object_key, inputs) for build in builds)
        for name, data in read_many("object", [*separate]).items():
            inputs = separate[name]
            if unpack(inputs, store, Page.unpacked(name, data)) is not None:
                left.pop(page_key(inputs), None)
    came -= len(left)
    return came, there, count - came - there


# --- sending a build to another machine --------------------------------------------------------------------------


def pack(inputs: KeyInputs, store: Store, obj: ObjectCode) -> Page | None:
    """Return a cached build to be sent to another machine; None if it is not portable."""
    build = _portable(inputs, store, obj)
    return None if build is None else _pack(inputs, build, obj)


def _portable(inputs: KeyInputs, store: Store, obj: ObjectCode) -> Record | None:
    build = store.record_of(inputs, obj)
    return build if build and keys.is_portable(inputs, obj, build.files) else None


def _pack(inputs: KeyInputs, build: Record, obj: ObjectCode) -> Page:
    key = inputs.portable_key
    data = object_file(inputs, build.object_key, obj)
    own = encode_records(key, [build], search=inputs.search)
    return Page(merged(key, own), {build.object_key: data})


def unpack(inputs: KeyInputs, store: Store, page: Page | None) -> ObjectCode | None:
    """Write a page's inlined build for the local files to the cache; None if there is none."""
    if page is None or not page.objects:
        return None
    for build in _usable(inputs, page.records):
        data = page.objects.get(build.object_key)
        obj = store.adopt(inputs, build, data) if data is not None else None
        if obj is not None:
            return obj
    return None


def _usable(inputs: KeyInputs, records: bytes) -> Iterator[Record]:
    """Yield the records of builds whose headers have the same contents here."""
    for build in _builds_in(inputs, records):
        if inputs.serves(build.backend, build.compiler):
            fresh = build.files.refreshed()
            if fresh is not None:
                yield build.replace(files=fresh)


def _builds_in(inputs: KeyInputs, records: bytes) -> tuple[Record, ...]:
    """Return a page's records of builds."""
    # They have no stats, since another machine's identify no header here.
    return decode_records(inputs.portable_key, records, inputs.search) or ()
