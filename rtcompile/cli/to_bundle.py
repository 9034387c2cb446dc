"""Builds requests for several architectures into one bundle, without times or paths.

Equal builds give equal bytes.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rtcompile.build import from_bundle, pipeline, planned
from rtcompile.build.from_bundle import Row, own_folders
from rtcompile.build.many import compile_many
from rtcompile.errors import InvalidRequest, warn
from rtcompile.files import sealed
from rtcompile.files.fileset import FileSet, joined
from rtcompile.files.headers import Header, SearchDir, relative_to
from rtcompile.files.sealed import content_digest
from rtcompile.lookup import bundles
from rtcompile.lookup.bundles import Bundle, UnusableError
from rtcompile.lookup.find import query_of
from rtcompile.named import NamedTuple
from rtcompile.request import object_code
from rtcompile.request import options as compiler_options
from rtcompile.request.object_code import ObjectCode, files_of
from rtcompile.request.request import CompileRequest, with_headers
from rtcompile.request.values import path as checked_path
from rtcompile.request.values import strings
from rtcompile.settings import Settings

OVERRIDES = ("fallback", "pch", "timeout", "memory_limit")


@dataclass(frozen=True, slots=True)
class Work:
    """A build to bundle, the further arguments of its `RawModule`, and the kernels that it declares."""

    request: CompileRequest
    arguments: Mapping[str, Any] = field(default_factory=lambda: dict.fromkeys(OVERRIDES))
    # A library's `Kernel`s, whose signatures are checked against the code.
    kernels: tuple[Any, ...] = ()
    # The programs' own request, if it is not `request`, and their devices' compute capability; None for the build's
    # architecture.
    requested: CompileRequest | None = None
    requested_by: tuple[int, int] | None = None
    origin: str = ""  # the line of a recorded program that requested it, "train.py:12"

    def label(self) -> str:
        """Return the build's name in messages."""
        names = ", ".join(self.request.name_expressions)
        requested_at = f", requested by {self.origin}" if self.origin else ""
        return f"{self.request.name}{f' ({names})' if names else ''}{requested_at}"

    @property
    def _build(self) -> Work:
        return self  # so that a batch takes it as it takes a `RawModule`

    def settings(self) -> Settings:
        return Settings.from_environ().override(**self.arguments)

    def build(self) -> ObjectCode:
        """Return the code that a program would get."""
        return pipeline.build(self.request, self.settings())


def bundle(
    work: Sequence[Work],
    path: str | os.PathLike[str],
    *,
    update: bool = False,
    progress: bool | Callable[[int, int, Any], Any] | None = None,
    skip_unbundleable: bool = False,
) -> list[tuple[CompileRequest, ObjectCode]]:
    """Build `work`, write it into a bundle, and return what is in it; `update` keeps the bundle's other builds."""
    target = checked_path("path", path)
    if os.path.isdir(target):
        raise InvalidRequest(f"{target} is a folder; a bundle is one file, such as kernels.rtcb")
    with bundles.out_of_use():
        contents: list[Contents] = []
        bundled: list[tuple[CompileRequest, ObjectCode]] = []
        reasons: list[str] = []
        for w, code in zip(work, compile_many(work, progress=progress), strict=True):
            for kernel in w.kernels:
                kernel.check(code)
            try:
                contents.append(_contents(w, code))
                bundled.append((w.request, code))
            except UnbundleableError as error:
                reasons.append(f"{w.label()} cannot be bundled: {error}")
    if reasons:
        advice = "; rtcompile bundle … --skip-unbundleable bundles the rest" if contents else ""
        head = f"{len(reasons)} of {len(work)} builds cannot be bundled{advice}"
        message = "\n  ".join([head, *dict.fromkeys(reasons)]) if len(work) > 1 else reasons[0]
        if not (skip_unbundleable and contents):
            raise InvalidRequest(message)
        warn(message)
    kept = read(Bundle(target)) if update else []
    try:
        write(target, [*kept, *contents])
    except OSError as error:
        raise InvalidRequest(f"{target} cannot be written: {error.strerror}") from None
    return bundled


class UnbundleableError(Exception):
    """A build cannot be part of a bundle; the message says why."""


def _contents(work: Work, code: ObjectCode) -> Contents:
    """Return a build's data for a bundle; raise `UnbundleableError` if it cannot be bundled."""
    request, name = work.request, work.request.name
    settings = work.settings()
    inputs = from_bundle.key_inputs(request, settings)
    if inputs is None:
        raise UnbundleableError("link= contains sources; compile them and link the results")
    plan = planned.plan(request, settings)
    read = files_of(code.build) or FileSet(code.build.headers)
    if read.uncacheable and not read.headers:
        raise UnbundleableError(read.uncacheable)
    if read.current() is None:
        raise InvalidRequest(f"{name}: a header changed while it was bundled; try again")
    if code.build.backend == "nvrtc" and (strays := [h for h in read.headers if not h.label]):
        raise UnbundleableError(
            f"it includes {strays[0].path} by its path on this machine; give its folder by -I"
        )
    row = Row(
        key=inputs.bundle_key(),
        arch=code.arch,
        kind=code.kind,
        backend=code.build.backend,
        compiler=code.build.compiler,
        cuda=int(code.build.compiler.split()[1].partition(".")[0]),
        program=os.path.basename(name),
        source=request.source_digest,
        options=tuple(f"{label} {value}".strip() for label, value in inputs.options),
        names=request.name_expressions,
    )
    folders = own_folders(plan.search)
    own = [each for each in plan.search if each.path in folders and each.is_own]
    timeless = code.replace(build=code.build.replace(compiled_in=0.0))
    return Contents(
        row,
        object_code.encode(row.sealed_key(), timeless, row.program),
        sealed.seal(bundles.CHECKS, "", _relocatable(read, own).packed(())),
        tuple(_request_digests(work, row, len(folders))),
    )


def _relocatable(read: FileSet, own: Sequence[SearchDir]) -> FileSet:
    """Return a build's files in the request's folders, with a folder's number in place of its path."""
    split = relative_to(tuple(own))

    def inside(paths: Iterable[str]) -> tuple[str, ...]:
        return tuple([f"{number}/{rest}" for number, rest in map(split, paths) if number >= 0])

    # Stats of the building machine are left out; the reader checks contents.
    listed = []
    for path, _, _, digest, size, *_ in read.headers:
        number, rest = split(path)
        if number >= 0:
            listed.append(Header(f"{number}/{rest}", f"user{number}", rest, digest, size, 0, 0))
    return FileSet(tuple(listed), inside(read.absent), inside(read.present))


def _request_digests(work: Work, row: Row, folders: int) -> list[str]:
    """Return the digests of the requests for which a build is valid, on a device and for its architecture."""
    settings = work.settings()
    requested = work.request if work.requested is None else work.requested
    digests: dict[str, None] = {}
    for request in (requested, requested.replace(arch=row.arch, target=row.kind)):
        query = query_of(request, settings, work.requested_by or (row.arch.major, row.arch.minor))
        found = bundles.digest_of(query)
        inputs = from_bundle.key_inputs(request, settings)
        is_exact = request.arch in (None, row.arch) and request.target == row.kind
        # Another form of the request may need another build.
        if inputs and inputs.bundle_key() == row.key and is_exact:
            digests |= {found[0]: None} if found and len(found[1]) == folders else {}
    return list(digests)


def for_archs(work: Iterable[Work], archs: Sequence[str]) -> Iterator[Work]:
    """Yield builds for each architecture; a build with a fixed architecture, once."""
    archs = strings("archs", archs)
    for each in work:
        request = with_headers(each.request)
        own = replace(each, request=request, requested=each.requested or each.request)
        if request.arch is not None or compiler_options.parse(request.options).arch:
            yield own
            continue
        if not archs:
            raise InvalidRequest(
                f"{request.name}: no architecture to build for; give one, such as sm_90a"
            )
        for name in archs:
            yield replace(own, request=request.replace(arch=name))


# --- The contents of a bundle -------------------------------------------------------------------------


class Contents(NamedTuple):
    """Everything that a bundle stores of a build."""

    row: Row
    code: bytes  # its object's file
    checks: bytes  # the package's own headers, as `bundles.read_checks` reads them
    queries: tuple[str, ...]


def read(bundle: Bundle) -> list[Contents]:
    """Return all builds of a bundle, with every byte verified."""
    try:
        rows, found = from_bundle.read_rows(bundle), []
        for row, queries in zip(rows, _queries(bundle), strict=True):
            code, checks = map(bundle.blob, (row.code, row.checks))
            bundles.read_checks(checks, defaultdict(str))
            found.append(Contents(row, code, checks, queries))
    except UnusableError as error:
        raise InvalidRequest(f"{bundle.path} cannot be used: {error}") from None
    ends = [start + size for row in rows for start, size, _ in (row.code, row.checks)]
    end = bundle.end_of_index + max(ends, default=0)
    if os.path.getsize(bundle.path) > end:
        raise InvalidRequest(f"{bundle.path}: the bytes from {end} on belong to no build")
    return found


def verify(bundle: Bundle) -> None:
    """Read every byte of a bundle; raise `InvalidRequest` if it is damaged."""
    for row, data, _, _ in read(bundle):
        if object_code.decode(row.sealed_key(), data) is None:
            raise InvalidRequest(f"{bundle.path}: the build of {row.program} does not verify")
    if bundle.problem:
        raise InvalidRequest(f"{bundle.path}: {bundle.problem}")


def _queries(bundle: Bundle) -> list[tuple[str, ...]]:
    """Return the digests of the queries that each row serves."""
    found: list[list[str]] = [[] for _ in bundle.rows]
    for query, rows in bundle.queries.items():
        for row in rows:
            if row >= len(found):
                raise UnusableError(f"its index names row {row}, which it does not have")
            found[row].append(query)
    return [tuple(queries) for queries in found]


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
    index = sealed.seal(bundles.INDEX, "", [lines.encode(), *rows])
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    sealed.publish(path, b"".join((bundles.HEAD.pack(bundles.MAGIC, len(index)), index, *blobs)))
    os.chmod(path, 0o644)  # other users may use an installed package
