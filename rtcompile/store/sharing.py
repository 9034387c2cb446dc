"""Shares builds through the shared stores: fetches other nodes' builds, and pushes this node's.

Each lookup key maps to a *page*: the dependency lists of up to four builds, with their code inlined if
small. A build is used only if the same files with the same contents are found here. If a header's contents
differ locally, compute the object key for those contents and fetch that. When a page is full, the next
page's key hashes the contents of the headers all its builds share. A build that depends on its path is
never shared.

A local hit does not use this module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from rtcompile.files.fileset import FileSet
from rtcompile.request import object_code
from rtcompile.request.key import KeyInputs, digest, field, is_portable, may_travel
from rtcompile.request.object_code import ObjectCode
from rtcompile.store import manifests
from rtcompile.store.manifests import ManifestEntry, Page
from rtcompile.store.remote import Entry, Remote, remote
from rtcompile.store.shared import SMALL

if TYPE_CHECKING:
    from rtcompile.store.store import Store
    from rtcompile.store.tier import Tier

_MOST_PAGES = 6


def find(inputs: KeyInputs, store: Store) -> ObjectCode | None:
    """Return a shared store's build of `inputs`, after writing it to the local cache."""
    stores = remote()
    if stores is None or not may_travel(inputs):
        return None
    with stores.counting() as counts:
        code = RemoteLookup(stores, inputs, store).look()
    return code and _with_counts(code, counts)


def find_or_build(
    inputs: KeyInputs,
    store: Store,
    build: Callable[[float | None], ObjectCode],
    seconds: float | None = None,
    *,
    waits: bool = True,
) -> ObjectCode:
    """Return what a shared store has, or the result of `build`; if another node builds, wait, or raise `Busy`."""
    stores = remote()
    if stores is None or not may_travel(inputs):
        return build(seconds)
    begin, program = time.monotonic(), inputs.name.rpartition("/")[2]
    lookup = RemoteLookup(stores, inputs, store)
    with stores.counting() as counts:
        code = lookup.look()
        if code is None:
            lease = stores.lease(lookup.lease_key, lookup.look, seconds, program, waits)
            if isinstance(lease, ObjectCode):
                code = lease
            else:
                left = None if seconds is None else seconds - (time.monotonic() - begin)
                end = lease.end if lease is not None else lambda _: None
                code = lookup.built(lambda: build(left), end)
    return _with_counts(code, counts)


def _with_counts(code: ObjectCode, counts: dict[str, dict[str, float]]) -> ObjectCode:
    return code.replace(build=code.build.replace(stores=counts))


def fetch_many(stores: Remote, wanted: Sequence[KeyInputs], store: Store) -> int:
    """Write to the local cache what the stores have of many builds, in few requests; return how many they have."""
    left = {inputs.portable_key: inputs for inputs in wanted if may_travel(inputs)}
    count = len(left)
    for tier in stores.tiers:
        separate: dict[str, KeyInputs] = {}
        for key, data in stores.get_many("manifest", [*left], tier).items():
            page, inputs = Page.unpacked(key, data), left[key]
            if unpack(inputs, store, page) is not None:
                del left[key]
            elif page is not None:
                builds = usable(inputs, page.manifest)
                separate.update((build.object_key, inputs) for build in builds)
        for name, data in stores.get_many("object", [*separate], tier).items():
            inputs = separate[name]
            if unpack(inputs, store, Page.unpacked(name, data)) is not None:
                left.pop(inputs.portable_key, None)
    return count - len(left)


class RemoteLookup:
    """One build's lookup in the shared stores, with state."""

    def __init__(self, stores: Remote, inputs: KeyInputs, store: Store) -> None:
        self._stores, self._inputs, self._store = stores, inputs, store
        self._key = inputs.portable_key
        self.lease_key = self._key  # or the object key for the local contents, if known
        self._missed = False  # a miss counts once, however often a wait repeats the lookup
        # The last page that each store has for this build, and its key. A new build is added to it.
        self._last: dict[Tier, tuple[str, Page | None]] = {}

    def look(self) -> ObjectCode | None:
        """Return the first store's build, after writing it to the local cache."""
        for at, tier in enumerate(self._stores.tiers):
            before = tier.here.counts["seconds_waited"]
            got = self._in(tier)
            if got is None:
                tier.count("misses", tier.open and not self._missed)
                continue
            build, obj = got
            waited = tier.here.counts["seconds_waited"] - before
            tier.hit(obj.build.compiled_in, waited)
            if at and self._stores.writes:  # copy it to the stores before this one
                above = self._stores.tiers[:at]
                self._stores.push(partial(self.entries, build, obj), tiers=above)
            return obj
        self._missed = True
        return None

    def built(self, build: Callable[[], ObjectCode], end: Callable[[bool], None]) -> ObjectCode:
        """Return the result of `build`, and push it if others can use it; `end` releases the lease."""
        stores, inputs = self._stores, self._inputs
        try:
            code = build()
            entry = self._store.entry_of(inputs, code)
        except BaseException:
            stores.later(partial(end, False))
            raise
        for tier in stores.tiers:
            tier.ledger.compiled += code.build.compiled_in / 1e3
        portable = entry is not None and is_portable(inputs, code, entry.dependencies)
        if entry is not None and portable and stores.writes:
            stores.push(partial(self.entries, entry, code), end)
        else:
            stores.later(partial(end, False))
        return code

    def _in(self, tier: Tier) -> tuple[ManifestEntry, ObjectCode] | None:
        """Return one store's build."""
        key, tried = self._key, set[str]()
        for _ in range(_MOST_PAGES):
            page = Page.unpacked(key, self._stores.get("manifest", key, tier))
            self._last[tier] = key, page
            if page is None:
                return None
            if (got := unpack(self._inputs, self._store, page)) is not None:
                return got
            named = [build.object_key for build in usable(self._inputs, page.manifest)]
            for name in chain(named, self._keys_here(page)):
                if name in tried:
                    continue
                tried.add(name)
                if name not in named:
                    self.lease_key = name
                apart = Page.unpacked(name, self._stores.get("object", name, tier))
                if (got := unpack(self._inputs, self._store, apart)) is not None:
                    return got
            if len(manifests.objects_of(self._key, page.manifest)) < manifests.MOST_BUILDS:
                return None
            key = self._after(key, page)
        return None

    def _keys_here(self, page: Page) -> Iterator[str]:
        """Yield the object keys these builds would have with the local header contents."""
        for build in _of_same_texts(self._inputs, page.manifest):
            files = build.dependencies.with_contents_here()
            if files is not None and build.backend in self._inputs.compilers:
                yield self._inputs.object_key(files, backend=build.backend)

    def _after(self, key: str, page: Page) -> str:
        """Return the next page's key, a hash of the contents here of the headers that all builds of this page share."""
        known = _of_same_texts(self._inputs, page.manifest)
        paths = [{header.path for header in build.dependencies.headers} for build in known]
        common = set.intersection(*paths) if paths else ()
        first = known[0].dependencies.headers if known else ()
        files = FileSet(headers=tuple(header for header in first if header.path in common))
        files = files.with_contents_here() or FileSet()
        read = [field(header.relative, header.digest) for header in files.headers]
        compilers = [field(*pair) for pair in sorted(self._inputs.compilers.items())]
        return digest([field("after", key), *compilers, *sorted(read)])

    def entries(self, build: ManifestEntry, obj: ObjectCode, tier: Tier) -> list[Entry]:
        """Return the entries to write to a store for a build: the object, then the page that names it."""
        # A page with builds is not read again, since the writer holds this lookup's lease.
        if tier not in self._last:
            self._in(tier)
        key, page = self._last[tier]
        own = pack_with(self._inputs, build, obj)
        name = build.object_key
        separate = ("object", name, own.packed(name))
        if page is None:
            if len(own.objects[name]) <= SMALL:
                return [("manifest", key, own.packed(key))]
            return [separate, ("manifest", key, own._replace(objects={}).packed(key))]
        if manifests.has_files_of(self._key, page.manifest, own.manifest):
            return [separate]
        both = manifests.merged(self._key, own.manifest, page.manifest)
        return [separate, ("manifest", key, page._replace(manifest=both).packed(key))]


# --- sending a build to another machine --------------------------------------------------------------------------


def pack(inputs: KeyInputs, store: Store, obj: ObjectCode) -> Page | None:
    """Return a cached build to be sent to another machine; None if it is not portable."""
    build = store.entry_of(inputs, obj)
    if build is None or not is_portable(inputs, obj, build.dependencies):
        return None
    return pack_with(inputs, build, obj)


def pack_with(inputs: KeyInputs, build: ManifestEntry, obj: ObjectCode) -> Page:
    """Return a build to be sent to another machine."""
    key = inputs.portable_key
    program = inputs.name.rpartition("/")[2]
    data = object_code.encode(build.object_key, obj, program, inputs.summary())
    own = manifests.encode(key, [build], inputs.search)
    return Page(key, manifests.merged(key, own), {build.object_key: data})


def unpack(
    inputs: KeyInputs, store: Store, page: Page | None
) -> tuple[ManifestEntry, ObjectCode] | None:
    """Write a page's inlined build for the local files to the cache; None if there is none."""
    for build in usable(inputs, page.manifest) if page is not None and page.objects else ():
        data = page.objects.get(build.object_key) if page is not None else None
        obj = store.adopt(inputs, build, data) if data is not None else None
        if obj is not None:
            return build, obj
    return None


def usable(inputs: KeyInputs, manifest: bytes) -> Iterator[ManifestEntry]:
    """Yield the builds of a manifest whose headers have the same contents here."""
    for build in _of_same_texts(inputs, manifest):
        if inputs.serves(build.backend, build.compiler):
            fresh = build.dependencies.refreshed()
            if fresh is not None:
                yield build._replace(dependencies=fresh)


def _of_same_texts(inputs: KeyInputs, manifest: bytes) -> list[ManifestEntry]:
    """Return the builds of a manifest for the given headers passed as strings."""
    # They have no stats, since another machine's identify no header here.
    builds = manifests.decode(inputs.portable_key, manifest, inputs.search) or ()
    return [build for build in builds if inputs.gets_same_texts(build.dependencies)]
