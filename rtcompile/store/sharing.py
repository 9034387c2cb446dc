"""Builds for other machines: which of a shared store's builds fit the files here, and what a build is sent as.

Each lookup key maps to a *page*: the dependency lists of up to four builds, with their code inlined if
small. A build is used only if the same files with the same contents are found here. If a header's contents
differ locally, compute the object key for those contents and fetch that. When a page is full, the next
page's key hashes the contents of the headers all its builds share. A build that depends on its path is
never shared.

A local hit does not use this module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from rtcompile.files.fileset import FileSet
from rtcompile.request.key import KeyInputs, digest, field, is_portable, may_travel
from rtcompile.request.object_code import ObjectCode
from rtcompile.store import manifests
from rtcompile.store.manifests import ManifestEntry, Page

if TYPE_CHECKING:
    from rtcompile.store.store import Store

SMALL = 32 << 10  # bytes; an object of up to this size is inlined in its page
_MOST_PAGES = 6

Entry = tuple[str, str, bytes]  # kind, key, data
Read = Callable[[str, str], "bytes | None"]  # returns an entry's data by its kind and key
ReadMany = Callable[[str, Sequence[str]], dict[str, bytes]]


class SharedBuild:
    """One build, as it is looked for in shared stores and written to them."""

    def __init__(self, inputs: KeyInputs, store: Store) -> None:
        self.may_travel = may_travel(inputs)
        self.program = inputs.name.rpartition("/")[2]
        self._inputs, self._store = inputs, store
        self._key = inputs.portable_key if self.may_travel else ""
        self.lease_key = self._key  # or the object key for the local contents, if known
        # The last page that each store has for this build, and its key. A new build is added to it.
        self._last: dict[object, tuple[str, Page | None]] = {}

    def find(self, shared: object, read: Read) -> ObjectCode | None:
        """Return one shared store's build, read by `read`, after writing it to the local cache."""
        key, tried = self._key, set[str]()
        for _ in range(_MOST_PAGES):
            page = Page.unpacked(key, read("manifest", key))
            self._last[shared] = key, page
            if page is None:
                return None
            if (got := unpack(self._inputs, self._store, page)) is not None:
                return got
            named = [build.object_key for build in _usable(self._inputs, page.manifest)]
            for name in chain(named, self._keys_here(page)):
                if name in tried:
                    continue
                tried.add(name)
                if name not in named:
                    self.lease_key = name
                apart = Page.unpacked(name, read("object", name))
                if (got := unpack(self._inputs, self._store, apart)) is not None:
                    return got
            if len(manifests.objects_of(self._key, page.manifest)) < manifests.MOST_BUILDS:
                return None
            key = self._next_key(key, page)
        return None

    def _keys_here(self, page: Page) -> Iterator[str]:
        """Yield the object keys these builds would have with the local header contents."""
        for build in _of_same_texts(self._inputs, page.manifest):
            files = build.dependencies.with_contents_here()
            if files is not None and build.backend in self._inputs.compilers:
                yield self._inputs.object_key(files, backend=build.backend)

    def _next_key(self, key: str, page: Page) -> str:
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

    def entries_of(self, code: ObjectCode) -> Callable[[object, Read], list[Entry]] | None:
        """Return a function that returns the entries to write to a store for a build; None if it is not portable."""
        build = _portable(self._inputs, self._store, code)
        if build is None:
            return None

        def entries(shared: object, read: Read) -> list[Entry]:
            # A page with builds is not read again, since the writer holds this build's lease.
            if shared not in self._last:
                self.find(shared, read)
            return self._entries(build, code, *self._last[shared])

        return entries

    def _entries(
        self, build: ManifestEntry, code: ObjectCode, key: str, page: Page | None
    ) -> list[Entry]:
        """Return the object, then the page that names it."""
        own = _pack(self._inputs, build, code)
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


def fetch_many(stores: Sequence[ReadMany], wanted: Sequence[KeyInputs], store: Store) -> int:
    """Write to the local cache what the stores have of many builds, in few requests; return how many they have."""
    left = {inputs.portable_key: inputs for inputs in wanted if may_travel(inputs)}
    count = len(left)
    for read_many in stores:
        separate: dict[str, KeyInputs] = {}
        for key, data in read_many("manifest", [*left]).items():
            page, inputs = Page.unpacked(key, data), left[key]
            if unpack(inputs, store, page) is not None:
                del left[key]
            elif page is not None:
                builds = _usable(inputs, page.manifest)
                separate.update((build.object_key, inputs) for build in builds)
        for name, data in read_many("object", [*separate]).items():
            inputs = separate[name]
            if unpack(inputs, store, Page.unpacked(name, data)) is not None:
                left.pop(inputs.portable_key, None)
    return count - len(left)


# --- sending a build to another machine --------------------------------------------------------------------------


def pack(inputs: KeyInputs, store: Store, obj: ObjectCode) -> Page | None:
    """Return a cached build to be sent to another machine; None if it is not portable."""
    build = _portable(inputs, store, obj)
    return None if build is None else _pack(inputs, build, obj)


def _portable(inputs: KeyInputs, store: Store, obj: ObjectCode) -> ManifestEntry | None:
    build = store.entry_of(inputs, obj)
    return build if build and is_portable(inputs, obj, build.dependencies) else None


def _pack(inputs: KeyInputs, build: ManifestEntry, obj: ObjectCode) -> Page:
    key = inputs.portable_key
    data = manifests.object_of(inputs, build.object_key, obj)
    own = manifests.encode(key, [build], inputs.search)
    return Page(key, manifests.merged(key, own), {build.object_key: data})


def unpack(inputs: KeyInputs, store: Store, page: Page | None) -> ObjectCode | None:
    """Write a page's inlined build for the local files to the cache; None if there is none."""
    for build in _usable(inputs, page.manifest) if page is not None and page.objects else ():
        data = page.objects.get(build.object_key) if page is not None else None
        obj = store.adopt(inputs, build, data) if data is not None else None
        if obj is not None:
            return obj
    return None


def _usable(inputs: KeyInputs, manifest: bytes) -> Iterator[ManifestEntry]:
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
