"""Whole caches are copied to and from shared stores: ``rtcompile cache push`` and ``pull``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from rtcompile.errors import InvalidRequest
from rtcompile.files import sealed
from rtcompile.store import manifests
from rtcompile.store.folder import Folder
from rtcompile.store.manifests import Page
from rtcompile.store.remote import Entry, Remote, Tier
from rtcompile.store.shared import SMALL, RemoteSettings, StoreError, first_line


def result(tier: Tier, copied: int, there: int, problem: str = "") -> dict[str, Any]:
    """Return what became of a store's builds: newly copied, present before, and why it ended early."""
    problem = problem or tier.problem
    return {"store": tier.store.name, "copied": copied, "there": there, "problem": problem}


def stores() -> Remote:
    """Return the stores that the environment names; raise InvalidRequest if it names none."""
    settings = RemoteSettings.from_environ()
    if not settings.addresses:
        raise InvalidRequest(
            "RTCOMPILE_REMOTE names no shared store: redis://…, s3://… or file:///…"
        )
    return Remote(settings)


def push(stores: Remote, folder: Folder) -> list[dict[str, Any]]:
    """Write to every store what the local cache contains for other machines too."""
    if not stores.writes:
        mode = os.environ.get("RTCOMPILE_REMOTE_MODE")
        raise InvalidRequest(f"RTCOMPILE_REMOTE_MODE={mode} forbids writing to the stores")
    return [_push(stores, tier, folder) for tier in stores.tiers]


def _push(stores: Remote, tier: Tier, folder: Folder) -> dict[str, Any]:
    copied = there = 0
    keys = [key for key, _ in folder.listing("portable")]
    own = {key: data for key in keys if (data := folder.read("portable", key)) is not None}
    before = _pages(stores, "manifest", [*own], tier)
    for key, manifest in own.items():
        if not tier.open:
            break
        page = before.get(key) or Page(key, b"", {})
        singles = manifests.one_by_one(key, manifest)
        there += len(known := {*manifests.objects_of(key, page.manifest)} & {*singles})
        read = {each: folder.read("objects", each) for each in singles if each not in known}
        new = {each: data for each, data in read.items() if data is not None}  # others were evicted
        if new:
            whole = page._replace(manifest=manifests.merged(key, manifest, page.manifest))
            if not page.manifest and [len(data) <= SMALL for data in new.values()] == [True]:
                whole, new = whole._replace(objects=new), {}  # one request will find it
            entries: list[Entry] = [
                ("object", each, Page(key, singles[each], {each: data}).packed(each))
                for each, data in new.items()
            ]
            copied += stores.put(tier, [*entries, ("manifest", key, whole.packed(key))])
    return result(tier, copied, there)


def _pages(stores: Remote, kind: str, keys: Sequence[str], tier: Tier) -> dict[str, Page]:
    found = stores.get_many(kind, keys, tier)
    pages = {key: Page.unpacked(key, data) for key, data in found.items()}
    return {key: page for key, page in pages.items() if page is not None}


def pull(stores: Remote, folder: Folder) -> list[dict[str, Any]]:
    """Write to the local cache what every store contains and the team's key signed."""
    folder.prepare()
    return [_pull(stores, tier, folder) for tier in stores.tiers]


def _pull(stores: Remote, tier: Tier, folder: Folder) -> dict[str, Any]:
    copied = there = 0
    for kind in ("manifest", "object"):
        try:
            keys = [key for key, _ in _listing(stores, tier, kind)]
        except Exception as error:  # noqa: BLE001  # a store's client may raise anything
            return result(tier, 0, 0, first_line(error))
        for page in _pages(stores, kind, keys, tier).values():
            new, old = keep(page, folder)
            copied, there = copied + new, there + old
    return result(tier, copied, there)


def keep(page: Page, folder: Folder) -> tuple[int, int]:
    """Write a page's objects to the local cache; return how many are new, and how many were there."""
    own = folder.read("portable", page.portable_key) or b""
    known = manifests.objects_of(page.portable_key, own)
    copied = 0
    for each, data in page.objects.items():
        if each not in known and sealed.unseal("object", each, data) is not None:
            folder.publish("objects", each, data)
            copied += 1
    if copied:
        merged = manifests.merged(page.portable_key, page.manifest, own)
        folder.publish("portable", page.portable_key, merged)
    return copied, sum(each in known for each in page.objects)


def _listing(stores: Remote, tier: Tier, kind: str) -> Iterator[tuple[str, int]]:
    """Yield name and size of a store's entries, those of keys for reading too."""
    if not hasattr(tier.store, "listing"):
        raise StoreError("it cannot list what it contains")
    for signer in stores.envelope.keys:
        yield from tier.store.listing(f"{signer.fingerprint}/{kind}")


def kept(stores: Remote) -> list[dict[str, Any]]:
    """Return how many builds and bytes every store contains; or why that is unknown."""
    found = []
    for tier in stores.tiers:
        sizes: list[list[int]] = [[]]
        problem = ""
        try:
            kinds = ("manifest", "object")
            sizes = [[size for _, size in _listing(stores, tier, kind)] for kind in kinds]
        except Exception as error:  # noqa: BLE001  # a store's client may raise anything
            problem = first_line(error)
        builds, size = max(map(len, sizes)), sum(map(sum, sizes))
        found.append({"store": tier.store.name, "builds": builds, "size": size, "problem": problem})
    return found
