"""A manifest lists, under a question's key, the builds of that question and their dependencies.

The file holds columns instead of records, so CuTe's 392 headers are read in a third of a
millisecond. A path is kept as the index of its search directory and the rest. So one format serves
both the manifest of certain folders, whose key holds the directories, and the portable manifest,
whose reader uses its own directories.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rtcompile.cache import files
from rtcompile.core.header import Header, SearchDir
from rtcompile.core.includes import placing
from rtcompile.core.request import ObjectCode
from rtcompile.core.value import replace
from rtcompile.lookup.fileset import FileSet

MOST_BUILDS = 4  # enough for an edit and its revert, each with two compilers


class ManifestEntry(NamedTuple):
    """One build of a question: the compiler that made it, its object's key, its dependencies."""

    backend: str
    compiler: str
    object_key: str
    dependencies: FileSet


def hit(obj: ObjectCode, build: ManifestEntry, where: str) -> ObjectCode:
    """Return an object as a caller gets it: with its headers, and where it was found."""
    # The reason for using NVCC still holds on a hit; the reason for the miss does not.
    why = obj.build.why if obj.build.backend == "nvcc" else ""
    read = build.dependencies
    return replace(obj, build=replace(obj.build, headers=read, hit=where, why=why))


def encode(key: str, builds: Sequence[ManifestEntry], search: Sequence[SearchDir]) -> bytes:
    """Return the content of the file under `key` for `builds`, the latest first."""
    fields = []
    for build in builds[:MOST_BUILDS]:
        names = (build.backend, build.compiler, build.object_key)
        fields += [_join(names), *_columns(build.dependencies, tuple(search))]
    return files.seal("manifest", key, fields)


def decode(key: str, data: bytes, search: Sequence[SearchDir]) -> list[ManifestEntry] | None:
    """Return the builds in the file found under `key`, latest first; None if it does not verify."""
    fields = files.unseal("manifest", key, data)
    if fields is None or len(fields) % _COLUMNS:
        return None
    directories = [d.path.rstrip("/") + "/" for d in search] + [""]  # -1: outside all of them
    labels = [d.label for d in search] + [""]
    builds = []
    try:
        for at in range(0, len(fields), _COLUMNS):
            names, *columns = fields[at : at + _COLUMNS]
            backend, compiler, object_key = _split(names)
            dependencies = _dependencies(columns, directories, labels)
            builds.append(ManifestEntry(backend, compiler, object_key, dependencies))
    except (struct.error, IndexError, ValueError):
        return None
    return builds


_COLUMNS = 11
_STATS = 4  # which of them


def objects_of(key: str, data: bytes) -> list[str]:
    """Return the keys of the objects that a manifest leads to, whatever the directories are."""
    return [*_groups(key, data)]


def merged(key: str, newer: bytes, older: bytes | None) -> bytes:
    """Return the portable manifest of two manifests' builds, the newer first, without stats."""
    builds = _groups(key, newer)
    for object_key, group in (_groups(key, older) if older is not None else {}).items():
        builds.setdefault(object_key, group)
    fields = []
    for group in [*builds.values()][:MOST_BUILDS]:
        fields += [*group[:_STATS], bytes(len(group[_STATS])), *group[_STATS + 1 :]]
    return files.seal("manifest", key, fields)


def _groups(key: str, data: bytes) -> dict[str, list[bytes]]:
    """Return the fields of each build by its object's key; none if the file does not verify."""
    fields = files.unseal("manifest", key, data)
    if fields is None or len(fields) % _COLUMNS:
        return {}
    groups = [fields[at : at + _COLUMNS] for at in range(0, len(fields), _COLUMNS)]
    return {_split(group[0])[-1]: group for group in groups if group[0]}


# Memoised: the two manifests of a build, and those of a batch's variants, hold the same columns.
@functools.lru_cache(maxsize=16)
def _columns(dependencies: FileSet, search: tuple[SearchDir, ...]) -> list[bytes]:
    headers = dependencies.headers
    place = placing(search)
    return [
        *_pack_paths([h.path for h in headers], place),
        bytes.fromhex("".join(h.digest for h in headers)),
        struct.pack(f"<{4 * len(headers)}q", *(number for h in headers for number in h[4:])),
        *_pack_paths(dependencies.absent, place),
        *_pack_paths(dependencies.present, place),
        _join(dependencies.answers),
        _join(dependencies.own_path),
    ]


def _dependencies(columns: Sequence[bytes], directories: list[str], labels: list[str]) -> FileSet:
    places, rests, digests, numbers, *probes, answers, own_path = columns
    relatives = _split(rests)
    positions = struct.unpack(f"<{len(relatives)}h", places)
    stats = struct.unpack(f"<{4 * len(relatives)}q", numbers)
    digest = digests.hex()
    headers = map(
        Header,
        [directories[i] + rest for i, rest in zip(positions, relatives, strict=True)],
        [labels[i] for i in positions],
        relatives,
        [digest[i : i + 64] for i in range(0, len(digest), 64)],
        stats[0::4],
        stats[1::4],
        stats[2::4],
        stats[3::4],
    )
    return FileSet(
        headers=tuple(headers),
        absent=_unpack_paths(probes[0], probes[1], directories),
        present=_unpack_paths(probes[2], probes[3], directories),
        answers=tuple(_split(answers)),
        own_path=tuple(_split(own_path)),
    )


def _pack_paths(
    paths: Sequence[str], place: Callable[[str], tuple[int, str]]
) -> tuple[bytes, bytes]:
    placed = [place(path) for path in paths]
    return struct.pack(f"<{len(placed)}h", *(i for i, _ in placed)), _join(r for _, r in placed)


def _unpack_paths(places: bytes, rests: bytes, directories: list[str]) -> tuple[str, ...]:
    relatives = _split(rests)
    positions = struct.unpack(f"<{len(relatives)}h", places)
    return tuple([directories[i] + rest for i, rest in zip(positions, relatives, strict=True)])


def _join(texts: Iterable[str]) -> bytes:
    return "".join([text + "\0" for text in texts]).encode("utf-8", "surrogateescape")


def _split(data: bytes) -> list[str]:
    return data.decode("utf-8", "surrogateescape").split("\0")[:-1]
