"""Finds builds in packages' bundles by their keys, with the headers that they were compiled from.

It needs neither a toolkit nor a writable cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from rtcompile.build import plan as plans
from rtcompile.errors import JitDisabled, RtcompileError
from rtcompile.files import headers
from rtcompile.files.fileset import texts_in
from rtcompile.files.headers import SearchDir
from rtcompile.files.sealed import content_digest
from rtcompile.lookup import bundles
from rtcompile.lookup import find as lookup
from rtcompile.lookup.bundles import Bundle, Extent, UnusableError, in_use, load, read_checks
from rtcompile.named import NamedTuple
from rtcompile.request import arch as archs
from rtcompile.request.key import EITHER, KeyInputs
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest, with_headers
from rtcompile.request.values import Arch, exact
from rtcompile.settings import Settings

if TYPE_CHECKING:
    from rtcompile.lookup.find import Query
    from rtcompile.request.units import LinkInput


# --- The builds of a bundle -------------------------------------------------------------------------


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


def _decode(at: int, data: bytes) -> Row:
    texts = texts_in(data)
    key, arch, kind, backend, compiler, cuda, program, source = texts[:8]
    code, checks = ((int(texts[i]), int(texts[i + 1]), texts[i + 2]) for i in (8, 11))
    names = 15 + int(texts[14])
    more = tuple(texts[15:names]), tuple(texts[names:]), at, code, checks
    return Row(key, Arch.parse(arch), kind, backend, compiler, int(cuda), program, source, *more)


def rows(bundle: Bundle, key: str | None = None) -> list[Row]:
    """Return the builds under `key`, or all of them; none if the bundle cannot be used."""
    try:
        return read_rows(bundle, key)
    except UnusableError as error:
        bundle.ignore(str(error))
        return []


def read_rows(bundle: Bundle, key: str | None = None) -> list[Row]:
    """Return the same; raise `UnusableError` if the bundle cannot be used."""
    if not bundle.open():
        return []
    begin = b"" if key is None else key.encode("utf-8", "surrogateescape") + b"\0"
    try:
        return [_decode(at, row) for at, row in enumerate(bundle.rows) if row.startswith(begin)]
    except (ValueError, IndexError, TypeError, RtcompileError) as error:
        raise UnusableError(f"its index cannot be understood ({error})") from None


def code_of(bundle: Bundle, row: Row, own: Sequence[SearchDir]) -> ObjectCode | None:
    """Return the build of a row; None if the package's own headers have changed since."""
    try:
        found = load(bundle, row.at, own_folders(own))
    except UnusableError as error:
        bundle.ignore(str(error))
        return None
    return None if found is None else found.obj


def _difference(bundle: Bundle, row: Row, own: Sequence[SearchDir]) -> str:
    """Describe how the package's own headers differ from those that the row was compiled from."""
    with suppress(UnusableError):
        return read_checks(bundle.blob(row.checks), own_folders(own)).difference()
    return ""


def own_folders(own: Iterable[SearchDir]) -> tuple[str, ...]:
    """Return the folders in a request; headers passed as strings have a label, and need no checks."""
    return tuple(each.path for each in own if each.is_own and not headers.label(each.path))


# --- The search for a request ------------------------------------------------------------------------


def key_inputs(request: CompileRequest, settings: Settings) -> KeyInputs | None:
    """Return the key inputs for bundles; None for sources in `link`, whose headers no bundle records."""
    links = _links(request)
    if links is None:
        return None
    options = plans.effective_options(with_headers(request).options, settings.debug)
    return KeyInputs(
        source=request.source,
        source_digest=request.source_digest,
        name=os.path.basename(request.name),
        options=options.key_fields,
        arch=Arch(0, 0),  # not in the key, since each build states its own
        name_expressions=request.name_expressions,
        backend=plans.wanted_backend(request, settings),
        search=plans.own_directories(options),
        links=tuple(f"{given.kind} {content_digest(given.data)}" for given in links),
        pre_includes=options.pre_includes,
        texts=request.headers,
    )


def _links(request: CompileRequest) -> list[LinkInput] | None:
    if not request.link:
        return []
    from rtcompile.request.units import LinkInput

    given = [plans.linker_input(item, index) for index, item in enumerate(request.link)]
    found = [item for item in given if isinstance(item, LinkInput)]
    return found if len(found) == len(given) else None


def usable(rows: Sequence[Row], capability: tuple[int, int]) -> list[Row]:
    """Return the rows that a device can run: exact architecture first, then machine code, then the nearest."""
    wanted = exact(capability)
    found = [
        row
        for row in rows
        if row.kind in ("cubin", "ptx") and archs.runs_on(row.arch, row.kind, capability)
    ]

    def merit(row: Row) -> tuple[int, bool, Arch]:
        own = wanted.index(row.arch) if row.kind == "cubin" and row.arch in wanted else len(wanted)
        return -own, row.kind == "cubin", row.arch

    return sorted(found, key=merit, reverse=True)


class Search:
    """The search for one request in every bundle in use."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._bundles = in_use(query.settings.bundles)
        self._request = query.request
        self._inputs = key_inputs(query.request, query.settings)
        self._key = self._inputs.bundle_key() if self._inputs is not None else ""
        self._folders = self._inputs.search if self._inputs is not None else ()

    def exact(self) -> ObjectCode | None:
        """Return the bundled build of exactly this request, or None."""
        found = list(self._rows())
        for wanted in self._wanted() if found else ():
            for bundle, row in found:
                is_wanted = (row.arch, row.kind) == wanted
                if is_wanted and (code := code_of(bundle, row, self._folders)):
                    return code
        return None

    def compatible(self, lacking: RtcompileError) -> ObjectCode:
        """Return a build for another architecture that the device can run; raise `lacking` if there is none."""
        found = list(self._rows())
        if found and self._requested() is None and self._request.target == "cubin":
            for row in usable([row for _, row in found], self._capability()):
                bundle = next(bundle for bundle, each in found if each is row)
                if code := code_of(bundle, row, self._folders):
                    return code
        sentences = [self._sentence(bundle) for bundle in self._bundles]
        details = "".join(f" {sentence}" for sentence in sentences if sentence)
        if not self._query.settings.jit:
            raise JitDisabled(
                f"{self._description()} is not in the cache ({self._query.settings.cache_dir}): "
                f"{lacking}; RTCOMPILE_JIT=0 forbids compiling it.{details}"
            ) from None
        wanted = f"{self._description()} cannot be compiled: " if details else ""
        raise type(lacking)(f"{wanted}{lacking}{details}") from None

    def _rows(self) -> Iterator[tuple[Bundle, Row]]:
        """Yield the builds under the request's key that are valid for its compiler."""
        if self._inputs is None:
            return
        for bundle in self._bundles:
            found = rows(bundle, self._key)
            if found and (cuda := bundles.cuda_major()) is not None:
                found = [row for row in found if row.cuda == cuda]
                made_with = {row.cuda for row in (() if found else rows(bundle))}
                if made_with and cuda not in made_with:
                    made = " and ".join(map(str, sorted(made_with)))
                    bundle.ignore(
                        f"it was made with CUDA {made}, and this process uses CUDA {cuda}"
                    )
            for row in found:
                if self._inputs.backend in (*EITHER, row.backend):
                    yield bundle, row

    def _wanted(self) -> list[tuple[Arch, str]]:
        """Return the architectures and kinds for which a compiler of any version would compile."""
        requested = self._requested()
        if requested is not None:
            return [requested]
        target = self._request.target
        if self._query.settings.ptx and target == "cubin":
            target = "ptx"
        return [(arch, target) for arch in exact(self._capability())]

    def _requested(self) -> tuple[Arch, str] | None:
        options = plans.effective_options(self._request.options, self._query.settings.debug)
        choice = plans.requested_architecture(self._request, options, self._capability)
        return None if choice is None else (choice.arch, choice.target)

    def _capability(self) -> tuple[int, int]:
        return self._query.capability or lookup.compute_capability()

    # --- for messages --------------------------------------------------------------------

    def _description(self) -> str:
        request, arch = self._request, self._wanted_arch()
        names = f" ({', '.join(request.name_expressions)})" if request.name_expressions else ""
        return f"{request.name}{names}{f' for {arch}' if arch else ''}"

    def _wanted_arch(self) -> Arch | None:
        try:
            requested = self._requested()
            return requested[0] if requested is not None else Arch(*self._capability())
        except RtcompileError:  # no device, for which there is another message
            return None

    def _sentence(self, bundle: Bundle) -> str:
        """Return a sentence that explains why the build was not found in a bundle."""
        found = rows(bundle, self._key)
        if bundle.problem:
            return f"Bundle {bundle.path}: {bundle.problem}."
        if found:
            for row in found:
                if changed := _difference(bundle, row, self._folders):
                    return f"Bundle {bundle.path} contains it, but {changed}."
            archs_there = ", ".join(sorted({str(row.arch) for row in found}))
            return (
                f"Bundle {bundle.path} only has {archs_there} code for it; rebuild the bundle with "
                f"{self._wanted_arch() or 'this architecture'}."
            )
        source = self._request.source_digest
        same_program = [row for row in rows(bundle) if row.program == self._request.name]
        if not same_program:
            return ""
        if not any(row.source == source for row in same_program):
            what = "from different source"
        elif not any(row.names == self._request.name_expressions for row in same_program):
            what = "with different name expressions"
        else:
            what = "with different options"
        return f"Bundle {bundle.path} contains this program, but built {what}."
