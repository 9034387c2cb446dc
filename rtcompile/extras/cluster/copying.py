"""Whole caches are copied to and from shared stores: ``rtcompile cache push`` and ``pull``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from rtcompile.errors import InvalidRequest
from rtcompile.files import sealed
from rtcompile.store import manifests
from rtcompile.store.folder import Folder
from rtcompile.store.remote import Remote, Tier
from rtcompile.store.shared import RemoteSettings, first_line, listing

_OBJECTS, _MANIFESTS = ("objects", "object"), ("portable", "manifest")


class Copied(NamedTuple):
    """What became of the builds of one store."""

    store: str
    copied: int  # newly copied
    there: int  # present before
    problem: str = ""  # why it ended early, or what was rejected; "" if all is well


class Kept(NamedTuple):
    """What a store contains: builds and bytes; or why that is unknown."""

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
    """Write to every store what the local cache contains for other machines too."""
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
        found = manifests.portable_entry(key, data) if data is not None else None
        if found is not None:
            manifest, build = found
            yield manifest, manifests.encode(manifest, [build], ())


def pull(stores: Remote, folder: Folder) -> list[Copied]:
    """Write to the local cache what every store contains and the team's key signed."""
    folder.prepare()
    return [_pull(stores, tier, folder) for tier in stores.tiers]


def _pull(stores: Remote, tier: Tier, folder: Folder) -> Copied:
    copied = there = 0
    try:
        keys = [key for key, _ in listing(tier.store, "manifest")]
    except Exception as error:  # noqa: BLE001  # a store's client may raise anything
        return Copied(tier.store.name, 0, 0, first_line(error))
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
    """Return what every store contains."""
    found = []
    for tier in stores.tiers:
        name = tier.store.name
        try:
            builds = list(listing(tier.store, "manifest"))
            objects = list(listing(tier.store, "object"))
        except Exception as error:  # noqa: BLE001  # a store's client may raise anything
            found.append(Kept(name, problem=first_line(error)))
        else:
            found.append(Kept(name, len(objects), sum(size for _, size in [*builds, *objects])))
    return found
