"""The shared stores behind the local cache: another node's builds are fetched, this node's shared.

A build travels as its object, and a manifest of the headers that it read. It answers only where the same
headers with the same contents are found. A build that depends on its path is never shared.

Nothing here is reached by a local hit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rtcompile.request import key as admission
from rtcompile.request import object_code
from rtcompile.request.key import KeyInputs
from rtcompile.request.object_code import ObjectCode
from rtcompile.store import manifests
from rtcompile.store.manifests import ManifestEntry
from rtcompile.store.remote import Entry, Remote, Tier, remote

if TYPE_CHECKING:
    from rtcompile.store.store import Store


def find(inputs: KeyInputs, store: Store) -> ObjectCode | None:
    """Return what a shared store has for `inputs`, and write it to the local cache."""
    stores = remote()
    if stores is None or not admission.may_travel(inputs):
        return None
    return fetch(stores, inputs, store)


def find_or_build(
    inputs: KeyInputs,
    store: Store,
    build: Callable[[float | None], ObjectCode],
    seconds: float | None = None,
) -> ObjectCode:
    """Return what a shared store has, or the result of `build`, which one node runs while others wait."""
    stores = remote()
    if stores is None or not admission.may_travel(inputs):
        return build(seconds)
    begin = time.monotonic()
    look = partial(fetch, stores, inputs, store)
    found = look()
    if found is not None:
        return found
    lease = stores.lease(inputs.portable_key(), look, seconds)
    if isinstance(lease, ObjectCode):
        return lease
    end = lease.end if lease is not None else _nothing
    try:
        code = build(None if seconds is None else seconds - (time.monotonic() - begin))
        entry = store.entry_of(inputs, code)
    except BaseException:
        stores.later(partial(end, False))
        raise
    worth = stores.worth(code.build.compiled_in)
    if entry is not None and worth and admission.is_portable(inputs, code, entry.dependencies):
        stores.push(partial(_entries, stores, inputs, entry, code), end)
    else:
        stores.later(partial(end, False))
    return code


def fetch(stores: Remote, inputs: KeyInputs, store: Store) -> ObjectCode | None:
    """Return what a shared store has for `inputs`, and write it to the local cache."""
    for at, tier in enumerate(stores.tiers):
        manifest = stores.get("manifest", inputs.portable_key(), tier)
        for build in usable(inputs, manifest) if manifest is not None else ():
            data = stores.get("object", build.object_key, tier)
            obj = None if data is None else store.adopt(inputs, build, data)
            if obj is None:
                continue
            if at and stores.writes:  # copy it to the stores that are asked before this one
                entries = partial(_entries, stores, inputs, build, obj)
                stores.push(entries, _nothing, stores.tiers[:at])
            return obj
    return None


def _entries(
    stores: Remote, inputs: KeyInputs, build: ManifestEntry, obj: ObjectCode, tier: Tier
) -> list[Entry]:
    """Return what a store is to hold of a build: the object, then the manifest that leads to it."""
    key = inputs.portable_key()
    # Builds of other headers, or by other compilers, stay beside it.
    before = stores.get("manifest", key, tier, waiting=False)
    packed = pack_with(inputs, build, obj, before)
    return [("object", packed.object_key, packed.object), ("manifest", key, packed.manifest)]


def _nothing(shared: bool) -> None:
    pass


# --- a build as it travels -----------------------------------------------------------------------


class Packed(NamedTuple):
    """A build's object with its key, and the manifest, which is sealed under the portable key."""

    object_key: str
    object: bytes
    manifest: bytes


def pack(inputs: KeyInputs, store: Store, obj: ObjectCode) -> Packed | None:
    """Return a build that is in the cache for another machine; None if it is not for others."""
    build = store.entry_of(inputs, obj)
    if build is None or not admission.is_portable(inputs, obj, build.dependencies):
        return None
    return pack_with(inputs, build, obj)


def pack_with(
    inputs: KeyInputs, build: ManifestEntry, obj: ObjectCode, before: bytes | None = None
) -> Packed:
    """Return a build as it travels, in a manifest with those of the manifest `before` it."""
    key = inputs.portable_key()
    program = inputs.name.rpartition("/")[2]
    alone = key if build.dependencies.is_empty else ""
    data = object_code.encode(build.object_key, obj, program, inputs.summary(), alone)
    own = manifests.encode(key, [build], inputs.search)
    return Packed(build.object_key, data, manifests.merged(key, own, before))


def unpack(inputs: KeyInputs, store: Store, found: Packed) -> ObjectCode | None:
    """Write another machine's build to the cache; None if it does not hold here."""
    for build in usable(inputs, found.manifest):
        if build.object_key == found.object_key:
            return store.adopt(inputs, build, found.object)
    return None


def usable(inputs: KeyInputs, manifest: bytes) -> Iterator[ManifestEntry]:
    """Yield the builds of a manifest whose headers are found here with the same contents."""
    for build in manifests.decode(inputs.portable_key(), manifest, inputs.search) or ():
        same = inputs.gets_same_texts(build.dependencies)
        if same and inputs.serves(build.backend, build.compiler):
            read = build.dependencies
            # The stats are another machine's: by them alone no header is known here.
            foreign = [header._replace(mtime_ns=0, ctime_ns=0) for header in read.headers]
            fresh = read.replaced(headers=tuple(foreign)).refreshed()
            if fresh is not None:
                yield build._replace(dependencies=fresh)
