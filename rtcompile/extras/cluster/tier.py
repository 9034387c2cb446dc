"""The level behind the local cache: another node's builds are fetched, this node's shared.

A build travels as its object, and a manifest of the headers that it read. It answers only where the same
headers with the same contents are found. A build that depends on its path is never shared.

Nothing here is reached by a local hit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rtcompile.errors import InvalidRequest
from rtcompile.extras.cluster.remote import Entry, Remote, Tier, remote
from rtcompile.extras.cluster.settings import RemoteSettings
from rtcompile.extras.cluster.stores import StoreError
from rtcompile.files import sealed
from rtcompile.request import key as admission
from rtcompile.request.key import KeyInputs
from rtcompile.request.object_code import ObjectCode
from rtcompile.store import manifests, objects
from rtcompile.store.folder import Folder
from rtcompile.store.manifests import ManifestEntry

if TYPE_CHECKING:
    from rtcompile.store.store import Store


# --- The tier behind the local cache --------------------------------------------------------------


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
    """Return what a shared store has, or the result of `build`, which one node runs.

    Other nodes wait for that build. One process of a node at a time calls this, so the node's other
    processes, such as the ranks of a job, find the code in the local cache. `seconds` includes the
    wait for another node's build, and `build` keeps its result in `store`.
    """
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
    data = objects.encode(build.object_key, obj, program, inputs.summary(), alone)
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


# --- ``rtcompile cache push`` and ``pull``: whole caches to and from shared stores ----------------

_OBJECTS, _MANIFESTS = ("objects", "object"), ("portable", "manifest")


class Copied(NamedTuple):
    """What became of the builds of one store."""

    store: str
    copied: int  # newly copied
    there: int  # present before
    problem: str = ""  # why it ended early, or what was refused; "" if all is well


class Kept(NamedTuple):
    """What a store holds: builds and bytes; or why that is unknown."""

    store: str
    builds: int = 0
    size: int = 0
    problem: str = ""


def stores() -> Remote:
    """Return the stores that the environment names; raise InvalidRequest if it names none."""
    settings = RemoteSettings.from_environ()
    if not settings.addresses:
        raise InvalidRequest(
            "RTCOMPILE_REMOTE names no shared store: redis://…, s3://… or file:///…"
        )
    return Remote(settings)


def push(stores: Remote, folder: Folder) -> list[Copied]:
    """Write to every store what the local cache holds for other machines too."""
    if not stores.writes:
        mode = os.environ.get("RTCOMPILE_REMOTE_MODE")
        raise InvalidRequest(f"RTCOMPILE_REMOTE_MODE={mode} forbids writing to the stores")
    return [_push(stores, tier, folder) for tier in stores.tiers]


def _push(stores: Remote, tier: Tier, folder: Folder) -> Copied:
    copied = there = 0
    for key, own in _manifests(folder):
        if not tier.open:
            continue
        before = stores.get("manifest", key, tier, waiting=False)
        known = manifests.objects_of(key, before) if before is not None else []
        new = [each for each in manifests.objects_of(key, own) if each not in known]
        entries = [("object", each, folder.read(_OBJECTS[0], each)) for each in new]
        found = [(kind, name, data) for kind, name, data in entries if data is not None]
        if not found:  # all there already, or evicted here
            there += not new
        elif stores.put(tier, [*found, ("manifest", key, manifests.merged(key, own, before))]):
            copied += 1
    return Copied(tier.store.name, copied, there, tier.problem)


def _manifests(folder: Folder) -> Iterator[tuple[str, bytes]]:
    """Yield the manifests for other machines, and those of builds that have none here."""
    for key, _ in folder.listing(_MANIFESTS[0]):
        own = folder.read(_MANIFESTS[0], key)
        if own is not None:
            yield key, own
    for key, _ in folder.listing(_OBJECTS[0]):
        data = folder.read(_OBJECTS[0], key)
        found = objects.portable_entry(key, data) if data is not None else None
        if found is not None:
            manifest, build = found
            yield manifest, manifests.encode(manifest, [build], ())


def pull(stores: Remote, folder: Folder) -> list[Copied]:
    """Write to the local cache what every store holds and the team's key signed."""
    folder.prepare()
    return [_pull(stores, tier, folder) for tier in stores.tiers]


def _pull(stores: Remote, tier: Tier, folder: Folder) -> Copied:
    copied = there = 0
    try:
        keys = [key for key, _ in tier.store.listing("manifest")]
    except StoreError as error:
        return Copied(tier.store.name, 0, 0, str(error))
    for key in keys:
        manifest = stores.get("manifest", key, tier, waiting=False)
        if manifest is None:
            continue
        own = folder.read(_MANIFESTS[0], key)
        known = manifests.objects_of(key, own) if own is not None else []
        wanted = [each for each in manifests.objects_of(key, manifest) if each not in known]
        got = {each: stores.get("object", each, tier, waiting=False) for each in wanted}
        whole = {each: data for each, data in got.items() if _is_object(each, data)}
        for each, data in whole.items():
            folder.publish(_OBJECTS[0], each, data or b"")
        if whole:
            folder.publish(_MANIFESTS[0], key, manifests.merged(key, manifest, own))
        copied += bool(whole)
        there += not wanted
    return Copied(tier.store.name, copied, there, tier.problem)


def _is_object(key: str, data: bytes | None) -> bool:
    return data is not None and sealed.unseal("object", key, data) is not None


def kept(stores: Remote) -> list[Kept]:
    """Return what every store holds."""
    found = []
    for tier in stores.tiers:
        name = tier.store.name
        try:
            builds = list(tier.store.listing("manifest"))
            objects = list(tier.store.listing("object"))
        except StoreError as error:
            found.append(Kept(name, problem=str(error)))
        else:
            found.append(Kept(name, len(objects), sum(size for _, size in [*builds, *objects])))
    return found
