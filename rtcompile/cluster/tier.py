"""The tier behind the local cache: what another node built is fetched; what is built here, for all nodes.

Nothing here is reached by a local hit. A manifest under the question's portable key says which
headers a build read; it answers only where the same headers with the same contents are found here,
and then leads to the object. A build that hangs on where it was made is never shared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rtcompile.cache import headers, manifests, objects
from rtcompile.cache.manifests import ManifestEntry
from rtcompile.cluster.remote import Entry, Remote, Tier, remote
from rtcompile.core import admission
from rtcompile.core.includes import placing
from rtcompile.core.key import Question
from rtcompile.core.request import ObjectCode

if TYPE_CHECKING:
    from rtcompile.cache.store import Store

__all__ = ["build_once", "entries_of", "fetch", "find", "shareable"]


def _nothing() -> None:
    pass


def find(question: Question, store: Store) -> ObjectCode | None:
    """Return what a shared store has for `question`, and write it to the local cache."""
    stores = remote()
    if stores is None or admission.reason_against(question):
        return None
    return fetch(stores, question, store)


def build_once(
    question: Question,
    store: Store,
    build: Callable[[float | None], ObjectCode],
    seconds: float | None = None,
) -> ObjectCode:
    """Return what `build` makes, on one node while the others wait for it, and share it.

    Parameters
    ----------
    question : Question
        What neither the local cache nor a shared store had an answer to.
    store : Store
        The local cache: what another node has built meanwhile is written to it.
    build : callable
        Compiles in so many seconds, and keeps its result in `store`.
    seconds : float, optional
        The time limit of it all, another node's build included.
    """
    stores = remote()
    if stores is None or admission.reason_against(question):
        return build(seconds)
    begin = time.monotonic()
    look = partial(fetch, stores, question, store)
    lease = stores.lease(question.portable_key(), look, seconds)
    if isinstance(lease, ObjectCode):
        return lease
    release = lease.release if lease is not None else _nothing
    try:
        code = build(None if seconds is None else seconds - (time.monotonic() - begin))
        entry = store.entry_of(question, code)
    except BaseException:
        release()
        raise
    worth = stores.worth(code.build.compiled_in)
    if entry is not None and worth and shareable(question, code, entry):
        stores.push(partial(entries_of, stores, question, entry, code), release)
    else:
        release()
    return code


def fetch(stores: Remote, question: Question, store: Store) -> ObjectCode | None:
    """Return what a shared store has for `question`, and write it to the local cache."""
    for at, tier in enumerate(stores.tiers):
        for build in _builds(stores, at, question):
            data = stores.get("object", build.object_key, tier)
            obj = None if data is None else store.adopt(question, build, data)
            if obj is None:
                continue
            if at and stores.writes:  # the stores that are asked first shall have it next time
                found = partial(entries_of, stores, question, build, obj)
                stores.push(found, _nothing, stores.tiers[:at])
            return obj
    return None


def _builds(stores: Remote, at: int, question: Question) -> list[ManifestEntry]:
    """Return the builds of one store's manifest whose headers are found here with the same contents."""
    key = question.portable_key()
    data = stores.get("manifest", key, stores.tiers[at])
    found = manifests.decode(key, data, question.search) if data is not None else None
    usable = []
    for build in found or ():
        if question.serves(build.backend, build.compiler):
            # The stats are another machine's: by them alone no header is known here.
            foreign = [
                header._replace(mtime_ns=0, ctime_ns=0) for header in build.dependencies.headers
            ]
            fresh = headers.refresh(replace(build.dependencies, headers=tuple(foreign)))
            if fresh is not None:
                usable.append(build._replace(dependencies=fresh))
    return usable


def shareable(question: Question, obj: ObjectCode, build: ManifestEntry) -> bool:
    """Say whether a build holds on other machines: no path of this one reached it.

    Every file that was looked at lies in a directory that the other machine names too, or among the
    system's: what NVCC's host compiler reads, whose build is in NVCC's identity.
    """
    if admission.path_bound(question, obj, build.dependencies, same_system=True):
        return False
    read = build.dependencies
    place = placing(question.search)
    beside = question.name.rpartition("/")[0]
    paths = [*(header.path for header in read.headers), *read.absent, *read.present]
    return all(
        place(path)[0] >= 0
        or (path.startswith("/usr/") and not (beside and path.startswith(beside)))
        for path in paths
    )


def entries_of(
    stores: Remote, question: Question, build: ManifestEntry, obj: ObjectCode, tier: Tier
) -> Sequence[Entry]:
    """Return what a store is to hold of a build: the object, then the manifest that leads to it."""
    key = question.portable_key()
    data = stores.get("manifest", key, tier)
    others = manifests.decode(key, data, question.search) if data is not None else None
    builds = [build, *(b for b in others or () if b.object_key != build.object_key)]
    program = question.name.rpartition("/")[2]
    return (
        (
            "object",
            build.object_key,
            objects.encode(build.object_key, obj, program, question.summary()),
        ),
        ("manifest", key, manifests.encode(key, builds, question.search)),
    )
