"""Writes a bundle's file without times or paths: equal builds give equal bytes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from rtcompile.bundles.file import Contents, LeftOut, Row
from rtcompile.bundles.sections import CHECKS, HEAD, INDEX, MAGIC
from rtcompile.files import headers, sealed
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import SearchDir
from rtcompile.files.sealed import content_digest
from rtcompile.request import sources
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.values import replace
from rtcompile.store import manifests, objects


def contents(
    row: Row,
    obj: ObjectCode,
    read: FileSet,
    search: Sequence[SearchDir],
    queries: Sequence[str] = (),
) -> Contents:
    """Return what a bundle stores of a build; `queries` are the digests by which it is found."""
    # The folders that a request names. Headers given as texts have a label, and are not checked.
    own = [each for each in search if each.is_own and not headers.label(each.path)]

    def is_own(path: str) -> bool:
        return sources.split_path(path, own)[0] >= 0

    # Stats of the building machine are left out; the reader checks contents.
    unplaced = [h._replace(mtime_ns=0, ctime_ns=0, inode=0) for h in read.headers]
    checked = FileSet(
        headers=tuple(h for h in unplaced if is_own(h.path)),
        absent=tuple(filter(is_own, read.absent)),
        present=tuple(filter(is_own, read.present)),
    )
    recorded = FileSet(headers=tuple(h for h in unplaced if not is_own(h.path)))
    builds = [
        manifests.ManifestEntry(row.backend, row.compiler, "", dependencies)
        for dependencies in (checked, recorded)
    ]
    timeless = replace(obj, build=replace(obj.build, compiled_in=0.0))
    key = row.sealed_key()
    return Contents(
        row,
        objects.encode(key, timeless, row.program),
        manifests.encode(key, builds, search),
        _checks(checked, own),
        tuple(queries),
    )


def _checks(checked: FileSet, own: Sequence[SearchDir]) -> bytes:
    """Encode the headers to check of a build, as `sections.read_checks` reads them."""

    def encoded(path: str) -> str:
        number, rest = sources.split_path(path, own)
        return f"{number}/{rest}\0"

    fields = (
        "".join(f"{encoded(header.path)}{header.digest}\0" for header in checked.headers),
        "".join(map(encoded, checked.absent)),
        "".join(map(encoded, checked.present)),
    )
    return sealed.seal(CHECKS, "", [field.encode("utf-8", "surrogateescape") for field in fields])


def write(path: str, builds: Iterable[Contents], left_out: Iterable[LeftOut] = ()) -> None:
    """Write a bundle in one step. The last build of each key, architecture, kind and CUDA is kept.

    It serves the queries of all of them: `RawKernel` and CuPy's own classes ask for one build differently.
    """
    last: dict[tuple[Any, ...], Contents] = {}
    served: dict[tuple[Any, ...], dict[str, None]] = {}
    for build in builds:
        key = (build.row.key, build.row.arch, build.row.kind, build.row.cuda)
        last[key] = build
        served.setdefault(key, {}).update(dict.fromkeys(build.queries))
    blobs: dict[bytes, int] = {}
    size = 0
    rows: list[bytes] = []
    queries: dict[str, list[int]] = {}
    for key, build in sorted(last.items(), key=lambda item: item[0]):
        for query in served[key]:
            queries.setdefault(query, []).append(len(rows))
        extents = []
        for blob in (build.code, build.record, build.checks):
            if blob not in blobs:
                blobs[blob] = size
                size += len(blob)
            extents += [str(blobs[blob]), str(len(blob)), content_digest(blob)]
        rows.append(_encode(build.row, extents))
    cuda = sorted({key[3] for key in last})
    lines = "".join(f"{query} {' '.join(map(str, at))}\n" for query, at in sorted(queries.items()))
    texts = "".join(f"{text}\0" for each in dict.fromkeys(left_out) for text in each)
    heads = [" ".join(map(str, cuda)), lines, texts]
    encoded = [head.encode("utf-8", "replace") for head in heads]
    index = sealed.seal(INDEX, "", [*encoded, *rows])
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    sealed.publish(path, b"".join((HEAD.pack(MAGIC, len(index)), index, *blobs)))
    os.chmod(path, 0o644)  # one user installs a package, and others use it


def _encode(row: Row, extents: Sequence[str]) -> bytes:
    texts = [row.key, str(row.arch), row.kind, row.backend, row.compiler, str(row.cuda)]
    texts += [row.program, row.source, *extents]
    for group in (row.options, row.names, row.labels):
        texts += [str(len(group)), *group]
    return "".join(text + "\0" for text in texts).encode("utf-8", "surrogateescape")
