"""Reads and writes whole bundles, without times or paths: equal builds give equal bytes."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from rtcompile.bundles.file import Row, own_folders, read_rows
from rtcompile.bundles.index import (
    CHECKS,
    HEAD,
    INDEX,
    MAGIC,
    Bundle,
    UnusableError,
    read_checks,
    read_others,
)
from rtcompile.errors import InvalidRequest
from rtcompile.files import sealed
from rtcompile.files.fileset import FileSet, joined
from rtcompile.files.headers import Header, SearchDir, relative_to
from rtcompile.files.sealed import content_digest
from rtcompile.named import NamedTuple
from rtcompile.request import object_code
from rtcompile.request.object_code import ObjectCode


class Contents(NamedTuple):
    """Everything that a bundle stores of a build."""

    row: Row
    code: bytes  # its object's file
    checks: bytes  # its headers, as `index.read_checks` and `read_others` read them
    queries: tuple[str, ...]


def read(bundle: Bundle) -> list[Contents]:
    """Return all builds of a bundle, with every byte verified."""
    try:
        rows, found = read_rows(bundle), []
        for row, queries in zip(rows, _queries(bundle), strict=True):
            code, checks = map(bundle.blob, (row.code, row.checks))
            listed_headers(checks)
            found.append(Contents(row, code, checks, queries))
    except UnusableError as error:
        raise InvalidRequest(f"{bundle.path} cannot be used: {error}") from None
    ends = [start + size for row in rows for start, size, _ in (row.code, row.checks)]
    end = bundle.end_of_index + max(ends, default=0)
    if os.path.getsize(bundle.path) > end:
        raise InvalidRequest(f"{bundle.path}: the bytes from {end} on belong to no build")
    return found


def _queries(bundle: Bundle) -> list[tuple[str, ...]]:
    """Return the digests of the queries that each row serves."""
    found: list[list[str]] = [[] for _ in bundle.rows]
    for query, rows in bundle.queries.items():
        for row in rows:
            if row >= len(found):
                raise UnusableError(f"its index names row {row}, which it does not have")
            found[row].append(query)
    return [tuple(queries) for queries in found]


def listed_headers(checks: bytes) -> tuple[Header, ...]:
    """Return all headers of a build; a header in a folder of the request has that folder's number as its label."""
    return (*read_checks(checks, defaultdict(str)).headers, *read_others(checks))


def contents_of(
    row: Row,
    obj: ObjectCode,
    read: FileSet,
    search: Sequence[SearchDir],
    queries: Sequence[str] = (),
) -> Contents:
    """Return a build's data for a bundle; `queries` are the digests under which it is found."""
    folders = own_folders(search)
    own = [each for each in search if each.path in folders and each.is_own]

    split = relative_to(tuple(own))

    def inside(paths: Iterable[str]) -> tuple[str, ...]:
        return tuple([f"{number}/{rest}" for number, rest in map(split, paths) if number >= 0])

    # Stats of the building machine are left out; the reader checks contents. The toolkit's folders may be missing or
    # different there, so labels replace them.
    listed = []
    for path, label, relative, digest, size, *_ in read.headers:
        number, rest = split(path)
        if number >= 0:
            path, label, relative = f"{number}/{rest}", f"user{number}", rest
        else:
            path = f"<{label}>/{relative}" if label else relative
        listed.append(Header(path, label, relative, digest, size, 0, 0))
    files = FileSet(tuple(listed), inside(read.absent), inside(read.present))
    timeless = obj.replace(build=obj.build.replace(compiled_in=0.0))
    return Contents(
        row,
        object_code.encode(row.sealed_key(), timeless, row.program),
        sealed.seal(CHECKS, "", files.packed(())),
        tuple(queries),
    )


def write(path: str, builds: Iterable[Contents]) -> None:
    """Write a bundle in one step, with the last build for each key, architecture, kind and CUDA version."""
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
        for blob in (build.code, build.checks):
            if blob not in blobs:
                blobs[blob] = size
                size += len(blob)
            extents += [str(blobs[blob]), str(len(blob)), content_digest(blob)]
        row = build.row
        texts = [row.key, str(row.arch), row.kind, row.backend, row.compiler, str(row.cuda)]
        texts += [row.program, row.source, *extents, str(len(row.options)), *row.options]
        rows.append(joined([*texts, *row.names]))
    lines = "".join(f"{query} {' '.join(map(str, at))}\n" for query, at in sorted(queries.items()))
    index = sealed.seal(INDEX, "", [lines.encode(), *rows])
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    sealed.publish(path, b"".join((HEAD.pack(MAGIC, len(index)), index, *blobs)))
    os.chmod(path, 0o644)  # other users may use an installed package
