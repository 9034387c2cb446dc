"""Reads a bundle's builds by key, with the headers that they were compiled from, and writes bundles."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from rtcompile.bundles.index import (
    CHECKS,
    HEAD,
    INDEX,
    MAGIC,
    Extent,
    Sections,
    UnusableError,
    load,
    read_checks,
    read_others,
    sections_in_use,
)
from rtcompile.errors import InvalidRequest, RtcompileError
from rtcompile.files import headers, sealed
from rtcompile.files.fileset import FileSet, joined, texts_in
from rtcompile.files.headers import Header, SearchDir, relative_to
from rtcompile.files.sealed import content_digest
from rtcompile.named import NamedTuple
from rtcompile.request import object_code
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.values import Arch


class Row(NamedTuple):
    """One build in a bundle's index; as a dataclass it would take 0.7 of a first hit's 2 ms."""

    key: str  # `KeyInputs.bundle_key()`, the same on every machine
    arch: Arch
    kind: str  # "cubin" or "ptx"
    backend: str
    compiler: str
    cuda: int  # the compiler's major version
    program: str  # this and the next three are for messages
    source: str  # its digest
    options: tuple[str, ...]  # effective ones
    names: tuple[str, ...]
    at: int = -1  # its position in the index
    code: Extent = (0, 0, "")
    checks: Extent = (0, 0, "")

    def sealed_key(self) -> str:
        """Return the key that the row's object is sealed under."""
        return " ".join((self.key, str(self.arch), self.kind, str(self.cuda)))


class Contents(NamedTuple):
    """Everything that a bundle stores of a build."""

    row: Row
    code: bytes  # its object's file
    checks: bytes  # its headers, as `index.read_checks` and `read_others` read them
    queries: tuple[str, ...]


def _decode(at: int, data: bytes) -> Row:
    texts = texts_in(data)
    key, arch, kind, backend, compiler, cuda, program, source = texts[:8]
    code, checks = ((int(texts[i]), int(texts[i + 1]), texts[i + 2]) for i in (8, 11))
    names = 15 + int(texts[14])
    more = tuple(texts[15:names]), tuple(texts[names:]), at, code, checks
    return Row(key, Arch.parse(arch), kind, backend, compiler, int(cuda), program, source, *more)


class Bundle:
    """A bundle on disk, read at first use. An unusable bundle is ignored with one warning."""

    def __init__(self, path: str, opened: Sections | None = None) -> None:
        self.path = path
        self._sections = opened or Sections(path)

    @property
    def problem(self) -> str:
        """Why the bundle is ignored; "" if it is used."""
        return self._sections.problem

    def rows(self, key: str | None = None) -> list[Row]:
        """Return the builds under `key`, or all of them; none if the bundle cannot be used."""
        try:
            return self._rows(key)
        except UnusableError as error:
            self._sections.ignore(str(error))
            return []

    def require_cuda(self, major: int) -> None:
        """Ignore the bundle if none of its builds was made with this major version of CUDA."""
        cuda = sorted({row.cuda for row in self.rows()})
        if cuda and major not in cuda:
            made_with = " and ".join(map(str, cuda))
            self._sections.ignore(
                f"it was made with CUDA {made_with}, and this process uses CUDA {major}"
            )

    def load(self, row: Row, own: Sequence[SearchDir]) -> ObjectCode | None:
        """Return the build of a row; None if the package's own headers have changed since."""
        try:
            found = load(self._sections, row.at, own_folders(own))
        except UnusableError as error:
            self._sections.ignore(str(error))
            return None
        return None if found is None else found.obj

    def difference(self, row: Row, own: Sequence[SearchDir]) -> str:
        """Describe how the package's own headers differ from those that the row was compiled from."""
        with suppress(UnusableError):
            checks = self._sections.blob(row.checks)
            return read_checks(checks, own_folders(own)).difference()
        return ""

    def contents(self) -> list[Contents]:
        """Return all builds, with every byte verified."""
        try:
            rows, found = self._rows(None), []
            for row, queries in zip(rows, self._queries(), strict=True):
                code, checks = map(self._sections.blob, (row.code, row.checks))
                listed_headers(checks)
                found.append(Contents(row, code, checks, queries))
        except UnusableError as error:
            raise InvalidRequest(f"{self.path} cannot be used: {error}") from None
        ends = [start + size for row in rows for start, size, _ in (row.code, row.checks)]
        end = self._sections.end_of_index + max(ends, default=0)
        if os.path.getsize(self.path) > end:
            raise InvalidRequest(f"{self.path}: the bytes from {end} on belong to no build")
        return found

    def _rows(self, key: str | None) -> list[Row]:
        if not self._sections.open():
            return []
        begin = b"" if key is None else key.encode("utf-8", "surrogateescape") + b"\0"
        rows = enumerate(self._sections.rows)
        try:
            return [_decode(at, row) for at, row in rows if row.startswith(begin)]
        except (ValueError, IndexError, TypeError, RtcompileError) as error:
            raise UnusableError(f"its index cannot be understood ({error})") from None

    def _queries(self) -> list[tuple[str, ...]]:
        """Return the digests of the queries that each row serves."""
        found: list[list[str]] = [[] for _ in self._sections.rows]
        for query, rows in self._sections.queries.items():
            for row in rows:
                if row >= len(found):
                    raise UnusableError(f"its index names row {row}, which it does not have")
                found[row].append(query)
        return [tuple(queries) for queries in found]


def in_use() -> list[Bundle]:
    """Return the bundles in use, in the order in which they were added."""
    return [Bundle(sections.path, sections) for sections in sections_in_use()]


def listed_headers(checks: bytes) -> tuple[Header, ...]:
    """Return all headers of a build, those of the request's folders with the folder's number as label."""
    return (*read_checks(checks, defaultdict(str)).headers, *read_others(checks))


def own_folders(own: Iterable[SearchDir]) -> tuple[str, ...]:
    """Return the folders in a request; headers passed as strings have a label, and need no checks."""
    return tuple(each.path for each in own if each.is_own and not headers.label(each.path))


# --- Writing, without times or paths: equal builds give equal bytes --------------------------------


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
