"""Manifests: each lists, under a lookup key, builds and the files that they depend on.

A path is stored as the index of its search directory and the rest. Portable manifests, whose readers substitute
their own directories, have the same format.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rtcompile.files import fileset, sealed
from rtcompile.files.fileset import DIGESTS, FileSet
from rtcompile.files.headers import SearchDir, relative_to
from rtcompile.named import NamedTuple
from rtcompile.request import object_code
from rtcompile.store.folder import Folder

if TYPE_CHECKING:
    from rtcompile.files.fileset import Record
    from rtcompile.request.key import KeyInputs
    from rtcompile.request.object_code import ObjectCode

MOST_BUILDS = 4  # per lookup key: enough for an edit and its revert, each with two compilers
_MOST_LISTED = 16  # of all lookup keys that share a manifest


class ManifestEntry(NamedTuple):
    """One build: its compiler, object key and dependencies, and the lookup key whose stats these have."""

    backend: str
    compiler: str
    object_key: str
    dependencies: FileSet
    found_by: str = ""  # the lookup key with which its files were found
    not_kept: str = ""  # why it was not kept; it then has neither an object nor files


def encode(key: str, builds: Sequence[ManifestEntry], search: Sequence[SearchDir]) -> bytes:
    """Return the content of the file under `key` for `builds`, the latest first."""
    split_path = relative_to(tuple(search))

    def stored(path: str) -> str:
        position, rest = split_path(path)
        return f"{position if position >= 0 else ''}:{rest}"

    return fileset.encode_records(
        "manifest",
        key,
        [((*b[:3], *b[4:]), b.dependencies.moved(stored)) for b in builds[:_MOST_LISTED]],
    )


@functools.lru_cache(maxsize=32)  # a miss reads its manifest three times, meanwhile others theirs
def decode(key: str, data: bytes, search: tuple[SearchDir, ...]) -> list[ManifestEntry] | None:
    """Return the builds in the file found under `key`, latest first; None if it does not verify."""
    found = fileset.decode_records("manifest", key, data)
    directories = [d.path.rstrip("/") + "/" for d in search]

    def here(path: str) -> str:
        position, _, rest = path.partition(":")
        return directories[int(position)] + rest if position else rest

    builds = []
    try:
        for (backend, compiler, object_key, found_by, not_kept), files in found or ():
            dependencies = files.moved(here)
            hash(dependencies)  # raises if the fields do not fit together
            entry = ManifestEntry(backend, compiler, object_key, dependencies, found_by, not_kept)
            builds.append(entry)
    except (struct.error, StopIteration, IndexError, ValueError):
        return None
    return None if found is None else builds


def objects_of(key: str, data: bytes) -> list[str]:
    """Return the object keys in a manifest, whatever the directories are."""
    return [*_by_object(key, data)]


def merged(key: str, newer: bytes, older: bytes = b"") -> bytes:
    """Return the portable manifest of two manifests' builds, the newer first, without stats."""
    newest = _by_object(key, newer)
    builds = newest | _by_object(key, older) | newest
    return fileset.encode_records("manifest", key, [*builds.values()][:MOST_BUILDS])


def one_by_one(key: str, data: bytes) -> dict[str, bytes]:
    """Return one portable manifest per build, by object key."""
    builds = _by_object(key, data).items()
    return {name: fileset.encode_records("manifest", key, [build]) for name, build in builds}


def portable_ones(folder: Folder) -> dict[str, bytes]:
    """Return the portable manifests of a cache, with the builds that need none because they read no file."""
    folder = Folder(folder.path, writable=False)  # reading here does not count as use
    keys = [key for key, _ in folder.listing("portable")]
    found = {key: data for key in keys if (data := folder.read("portable", key)) is not None}
    for name, _ in folder.listing("objects"):
        data = folder.read("objects", name) or b""
        if key := object_code.portable_key(name, data):
            _, obj = object_code.decode(name, data) or ("", None)
            if obj is not None:
                backend, _, compiler = obj.build.compiler.partition(" ")
                own = encode(key, [ManifestEntry(backend, compiler, name, FileSet())], ())
                found[key] = merged(key, own, found.get(key, b""))
    return found


def object_of(inputs: KeyInputs, object_key: str, obj: ObjectCode) -> bytes:
    """Return the content of a build's object file."""
    program = inputs.name.rpartition("/")[2]
    portable = inputs.portable_key if object_key == inputs.key_without_files else ""
    return object_code.encode(object_key, obj, program, inputs.summary(), portable)


def has_files_of(key: str, data: bytes, other: bytes) -> bool:
    """Return whether two manifests have a build with the same files, whatever their contents."""
    files = [_names(build) for build in _by_object(key, data).values()]
    return all(_names(build) in files for build in _by_object(key, other).values())


def _names(build: Record) -> tuple[object, ...]:
    """Return a build's backend and files, without their contents."""
    (backend, *_), files = build
    fields = files.packed(())
    return (backend, *fields[:DIGESTS], *fields[DIGESTS + 1 :])


def _by_object(key: str, data: bytes) -> dict[str, Record]:
    """Return the builds that were kept by their object keys, without stats."""
    found = fileset.decode_records("manifest", key, data) or ()
    return {texts[2]: (texts, files.without_stats()) for texts, files in found if any(texts[2:3])}


class Page(NamedTuple):
    """The value under a key of a shared store: a manifest of builds, and the small ones' objects by key."""

    portable_key: str  # under which the manifest is sealed
    manifest: bytes
    objects: dict[str, bytes]

    def packed(self, key: str) -> bytes:
        """Return the page as stored under `key`."""
        pairs = [each for name, data in self.objects.items() for each in (name.encode(), data)]
        return sealed.seal("page", key, [self.portable_key.encode(), self.manifest, *pairs])

    @classmethod
    def unpacked(cls, key: str, data: bytes | None) -> Page | None:
        """Return the page from `packed` data; None if it does not verify."""
        fields = sealed.unseal("page", key, data) if data is not None else None
        if not fields or len(fields) % 2:
            return None
        portable_key, *names = [name.decode("ascii", "replace") for name in fields[::2]]
        return cls(portable_key, fields[1], dict(zip(names, fields[3::2], strict=True)))
