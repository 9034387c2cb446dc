"""The shared stores behind the local cache: another node's builds are fetched, this node's shared.

Each lookup key maps to a *page*: the dependency lists of up to four builds, with their code inlined if
small. A build is used only if the same files with the same contents are found here. If a header's contents
differ locally, compute the object key for those contents and fetch that. When a page is full, the next
page's key hashes the contents of the headers all its builds share. A build that depends on its path is
never shared.

A local hit runs nothing of this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rtcompile.files.fileset import FileSet
from rtcompile.request import object_code
from rtcompile.request.key import KeyInputs, digest, field, is_portable, may_travel
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.values import replace
from rtcompile.store import leases, manifests
from rtcompile.store.manifests import ManifestEntry, Page
from rtcompile.store.remote import Entry, Remote, remote

if TYPE_CHECKING:
    from rtcompile.store.store import Store
    from rtcompile.store.tier import Tier

_MOST_PAGES = 6
_SMALL = 32 << 10  # bytes; an object of up to this size is inlined in its page


def find(inputs: KeyInputs, store: Store) -> ObjectCode | None:
    """Return what a shared store has for `inputs`, and write it to the local cache."""
    stores = remote()
    if stores is None or not may_travel(inputs):
        return None
    return fetch(stores, inputs, store)


def find_or_build(
    inputs: KeyInputs,
    store: Store,
    build: Callable[[float | None], ObjectCode],
    seconds: float | None = None,
    *,
    waits: bool = True,
) -> ObjectCode:
    """Return what a shared store has, or the result of `build`, which one node runs while others wait.

    Without `waits`, `Busy` is raised if another node is building it.
    """
    stores = remote()
    if stores is None or not may_travel(inputs):
        return build(seconds)
    before = stores.waited_here()
    code = _find_or_build(stores, inputs, store, build, seconds, waits=waits)
    waited = (stores.waited_here() - before) * 1e3
    return replace(code, build=replace(code.build, waited=waited))


def _find_or_build(
    stores: Remote,
    inputs: KeyInputs,
    store: Store,
    build: Callable[[float | None], ObjectCode],
    seconds: float | None,
    *,
    waits: bool,
) -> ObjectCode:
    begin = time.monotonic()
    lookup = RemoteLookup(stores, inputs, store)
    found = lookup.look()
    if found is not None:
        return found
    program = inputs.name.rpartition("/")[2]
    lease = stores.lease(lookup.lease_key, lookup.look, seconds, program=program, waits=waits)
    if isinstance(lease, ObjectCode):
        return lease
    end = leases.ending(lease)
    try:
        code = build(None if seconds is None else seconds - (time.monotonic() - begin))
        entry = store.entry_of(inputs, code)
    except BaseException:
        stores.later(partial(end, False))
        raise
    stores.compiled(code.build.compiled_in)
    worth = stores.worth(code.build.compiled_in)
    if entry is not None and worth and is_portable(inputs, code, entry.dependencies):
        stores.push(partial(lookup.entries, entry, code), end)
    else:
        stores.later(partial(end, False))
    return code


def fetch(stores: Remote, inputs: KeyInputs, store: Store) -> ObjectCode | None:
    """Return what a shared store has for `inputs`, and write it to the local cache."""
    return RemoteLookup(stores, inputs, store).look()


def fetch_many(stores: Remote, wanted: Sequence[KeyInputs], store: Store) -> int:
    """Write to the local cache what the stores have of many builds; return how many they have.

    Pages are requested many keys at a time, and so are the objects that are not inlined in them.
    """
    left = {inputs.portable_key(): inputs for inputs in wanted if may_travel(inputs)}
    found = 0
    for tier in stores.tiers:
        separate: dict[str, tuple[KeyInputs, ManifestEntry]] = {}
        for key, data in stores.get_many("manifest", [*left], tier).items():
            page, inputs = Page.unpacked(key, data), left[key]
            for build in usable(inputs, page.manifest) if page is not None else ():
                held = page.objects.get(build.object_key) if page is not None else None
                if held is None:
                    separate[build.object_key] = inputs, build
                elif store.adopt(inputs, build, held) is not None:
                    separate.pop(build.object_key, None)
                    left.pop(key, None)
                    found += 1
                    break
        for key, data in stores.get_many("object", [*separate], tier).items():
            page, (inputs, build) = Page.unpacked(key, data), separate[key]
            held = page.objects.get(key) if page is not None else None
            if held is not None and store.adopt(inputs, build, held) is not None:
                found += left.pop(inputs.portable_key(), None) is not None
    return found


class RemoteLookup:
    """One build's lookup in the shared stores, with state."""

    def __init__(self, stores: Remote, inputs: KeyInputs, store: Store) -> None:
        self._stores, self._inputs, self._store = stores, inputs, store
        self._key = inputs.portable_key()
        self.lease_key = self._key  # or the object key for the local contents, once it is known
        self._missed = False  # a miss counts once, however often a wait repeats the lookup
        # The last page that each store has for this build, and its key. A new build is added to it.
        self._last: dict[Tier, tuple[str, Page | None]] = {}

    def look(self) -> ObjectCode | None:
        """Return what a store has, and write it to the local cache."""
        for at, tier in enumerate(self._stores.tiers):
            before = tier.waited_here()
            got = self._in(tier)
            if got is None:
                tier.counts["misses"] += tier.open and not self._missed
                continue
            build, obj = got
            tier.hit(obj.build.compiled_in, tier.waited_here() - before)
            if at and self._stores.writes:  # copy it to the stores that come before this one
                above = self._stores.tiers[:at]
                self._stores.push(partial(self.entries, build, obj), leases.nothing, above)
            return obj
        self._missed = True
        return None

    def _in(self, tier: Tier) -> tuple[ManifestEntry, ObjectCode] | None:
        """Return what one store has."""
        key, tried = self._key, set[str]()
        for _ in range(_MOST_PAGES):
            page = Page.unpacked(key, self._stores.get("manifest", key, tier))
            self._last[tier] = key, page
            if page is None:
                return None
            for build in usable(self._inputs, page.manifest):
                tried.add(build.object_key)
                data = page.objects.get(build.object_key)
                got = (
                    self._adopted(build, data)
                    if data
                    else self._fetch_by_object_key(tier, build.object_key)
                )
                if got is not None:
                    return got
            for name in self._keys_here(page):
                if name not in tried:
                    tried.add(name)
                    self.lease_key = name
                    got = self._fetch_by_object_key(tier, name)
                    if got is not None:
                        return got
            if not manifests.is_full(self._key, page.manifest):
                return None
            key = self._after(key, page)
        return None

    def _fetch_by_object_key(
        self, tier: Tier, object_key: str
    ) -> tuple[ManifestEntry, ObjectCode] | None:
        """Return the build stored under its object key, after comparing its files too."""
        data = self._stores.get("object", object_key, tier)
        page = Page.unpacked(object_key, data)
        for build in usable(self._inputs, page.manifest) if page is not None else ():
            if page is not None and build.object_key == object_key:
                return self._adopted(build, page.objects.get(object_key))
        return None

    def _adopted(
        self, build: ManifestEntry, data: bytes | None
    ) -> tuple[ManifestEntry, ObjectCode] | None:
        obj = self._store.adopt(self._inputs, build, data) if data is not None else None
        return None if obj is None else (build, obj)

    def _keys_here(self, page: Page) -> Iterator[str]:
        """Yield the object keys these builds would have with the local header contents."""
        for build in _of_same_texts(self._inputs, page.manifest):
            files = build.dependencies.with_contents_here()
            if files is not None and build.backend in self._inputs.compilers:
                yield self._inputs.object_key(files, backend=build.backend)

    def _after(self, key: str, page: Page) -> str:
        """Return the next page's key.

        It hashes the local contents of the headers that all builds on this page share.
        """
        known = _of_same_texts(self._inputs, page.manifest)
        common = (
            set.intersection(
                *({header.path for header in build.dependencies.headers} for build in known)
            )
            if known
            else set()
        )
        here = FileSet(headers=known[0].dependencies.headers if known else ())
        chosen = tuple(header for header in here.headers if header.path in common)
        files = FileSet(headers=chosen).with_contents_here()
        read = [field(h.relative, h.digest) for h in files.headers] if files is not None else []
        compilers = [field(*pair) for pair in sorted(self._inputs.compilers.items())]
        return digest([field("after", key), *compilers, *sorted(read)])

    def entries(self, build: ManifestEntry, obj: ObjectCode, tier: Tier) -> list[Entry]:
        """Return what to write to a store for a build: the object, then the page that names it.

        A page that has builds is not read again, since the writer holds this lookup's lease. A small object
        is inlined only if its build is the first of the first page.
        """
        if tier not in self._last:
            self._in(tier)
        key, page = self._last[tier]
        packed = pack_with(self._inputs, build, obj)
        own = Page(self._key, packed.manifest, {packed.object_key: packed.object})
        separate = ("object", packed.object_key, own.packed(packed.object_key))
        if page is None:
            if len(packed.object) <= _SMALL:
                return [("manifest", key, own.packed(key))]
            return [separate, ("manifest", key, own._replace(objects={}).packed(key))]
        if manifests.has_files_of(self._key, page.manifest, packed.manifest):
            return [separate]
        both = manifests.merged(self._key, packed.manifest, page.manifest)
        return [separate, ("manifest", key, page._replace(manifest=both).packed(key))]


# --- a build on its way to another machine -----------------------------------------------------------------------


class Packed(NamedTuple):
    """A build's object with its key, and the manifest, which is sealed with the portable key."""

    object_key: str
    object: bytes
    manifest: bytes


def pack(inputs: KeyInputs, store: Store, obj: ObjectCode) -> Packed | None:
    """Return a cached build to be sent to another machine; None if it is not portable."""
    build = store.entry_of(inputs, obj)
    if build is None or not is_portable(inputs, obj, build.dependencies):
        return None
    return pack_with(inputs, build, obj)


def pack_with(inputs: KeyInputs, build: ManifestEntry, obj: ObjectCode) -> Packed:
    """Return a build to be sent to another machine."""
    key = inputs.portable_key()
    program = inputs.name.rpartition("/")[2]
    alone = key if build.dependencies.is_empty else ""
    data = object_code.encode(build.object_key, obj, program, inputs.summary(), alone)
    own = manifests.encode(key, [build], inputs.search)
    return Packed(build.object_key, data, manifests.merged(key, own, None))


def unpack(inputs: KeyInputs, store: Store, found: Packed) -> ObjectCode | None:
    """Write another machine's build to the cache; return None if its files differ here."""
    for build in usable(inputs, found.manifest):
        if build.object_key == found.object_key:
            return store.adopt(inputs, build, found.object)
    return None


def usable(inputs: KeyInputs, manifest: bytes) -> Iterator[ManifestEntry]:
    """Yield the builds of a manifest whose headers are found here with the same contents."""
    for build in _of_same_texts(inputs, manifest):
        if inputs.serves(build.backend, build.compiler):
            fresh = build.dependencies.refreshed()
            if fresh is not None:
                yield build._replace(dependencies=fresh)


def _of_same_texts(inputs: KeyInputs, manifest: bytes) -> list[ManifestEntry]:
    """Return the builds of a manifest for the headers given as texts here."""
    found = []
    for build in manifests.decode(inputs.portable_key(), manifest, inputs.search) or ():
        if inputs.gets_same_texts(build.dependencies):
            read = build.dependencies
            # The stats are another machine's: by them alone no header is known here.
            foreign = [header._replace(mtime_ns=0, ctime_ns=0) for header in read.headers]
            found.append(build._replace(dependencies=read.replaced(headers=tuple(foreign))))
    return found
