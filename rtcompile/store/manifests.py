"""Manifests: each lists, under a lookup key, builds and the files that they depend on.

A path is stored as the index of its search directory and the rest. Portable manifests, whose readers substitute
their own directories, have the same format.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rtcompile.files import fileset
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import SearchDir, relative_to
from rtcompile.named import NamedTuple
from rtcompile.request import object_code

if TYPE_CHECKING:
    from rtcompile.request.key import KeyInputs
    from rtcompile.request.object_code import ObjectCode

MOST_BUILDS = 4  # of one lookup key: enough for an edit and its revert, each with two compilers
MOST_LISTED = 16  # of all lookup keys that share a manifest


class ManifestEntry(NamedTuple):
    """One build: its compiler, object key and dependencies, with the stats of the last look-up that compared them."""

    backend: str
    compiler: str
    object_key: str
    dependencies: FileSet
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
        [((*b[:3], b.not_kept), b.dependencies.moved(stored)) for b in builds[:MOST_LISTED]],
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
        for (backend, compiler, object_key, not_kept), files in found or ():
            dependencies = files.moved(here)
            hash(dependencies)  # raises if the fields do not fit together
            builds.append(ManifestEntry(backend, compiler, object_key, dependencies, not_kept))
    except (struct.error, StopIteration, IndexError, ValueError):
        return None
    return None if found is None else builds


def object_of(inputs: KeyInputs, object_key: str, obj: ObjectCode) -> bytes:
    """Return the content of a build's object file."""
    program = inputs.name.rpartition("/")[2]
    portable = inputs.portable_key if object_key == inputs.key_without_files else ""
    return object_code.encode(object_key, obj, program, inputs.summary(), portable)
