"""A build as it travels between machines: its object, and a manifest of what it read.

The manifest says which headers a build read; it answers only where the same headers with the same
contents are found, and then the object is used. A build that depends on its path is never
shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from rtcompile.cache import manifests, objects
from rtcompile.cache.manifests import ManifestEntry
from rtcompile.core import admission
from rtcompile.core.key import Question
from rtcompile.core.request import ObjectCode

if TYPE_CHECKING:
    from rtcompile.cache.store import Store


class Packed(NamedTuple):
    """A build's object with its key, and the manifest, which is sealed under the portable key."""

    object_key: str
    object: bytes
    manifest: bytes


def pack(question: Question, store: Store, obj: ObjectCode) -> Packed | None:
    """Return a build that is in the cache for another machine; None if it is not for others."""
    build = store.entry_of(question, obj)
    if build is None or not admission.holds_elsewhere(question, obj, build.dependencies):
        return None
    return packed(question, build, obj)


def packed(
    question: Question, build: ManifestEntry, obj: ObjectCode, before: bytes | None = None
) -> Packed:
    """Return a build as it travels, in a manifest with those of the manifest `before` it."""
    key = question.portable_key()
    program = question.name.rpartition("/")[2]
    alone = key if build.dependencies.is_empty else ""
    data = objects.encode(build.object_key, obj, program, question.summary(), alone)
    own = manifests.encode(key, [build], question.search)
    return Packed(build.object_key, data, manifests.merged(key, own, before))


def unpack(question: Question, store: Store, found: Packed) -> ObjectCode | None:
    """Write another machine's build to the cache; None if it does not hold here."""
    for build in usable(question, found.manifest):
        if build.object_key == found.object_key:
            return store.adopt(question, build, found.object)
    return None


def usable(question: Question, manifest: bytes) -> Iterator[ManifestEntry]:
    """Yield the builds of a manifest whose headers are found here with the same contents."""
    for build in manifests.decode(question.portable_key(), manifest, question.search) or ():
        if question.serves(build.backend, build.compiler):
            read = build.dependencies
            # The stats are another machine's: by them alone no header is known here.
            foreign = [header._replace(mtime_ns=0, ctime_ns=0) for header in read.headers]
            fresh = read.replaced(headers=tuple(foreign)).refreshed()
            if fresh is not None:
                yield build._replace(dependencies=fresh)
