"""Finds builds in packages' bundles by their keys; it needs neither a toolkit nor a writable cache."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rtcompile.build import plan as plans
from rtcompile.bundles import file
from rtcompile.bundles import index as bundles
from rtcompile.bundles.file import Row
from rtcompile.bundles.index import Bundle, in_use
from rtcompile.errors import JitDisabled, RtcompileError
from rtcompile.files.sealed import content_digest
from rtcompile.lookup import find as lookup
from rtcompile.request import arch as archs
from rtcompile.request.key import EITHER, KeyInputs
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest, with_headers
from rtcompile.request.values import Arch, exact
from rtcompile.settings import Settings

if TYPE_CHECKING:
    from rtcompile.lookup.find import Query
    from rtcompile.request.units import LinkInput


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
        for path in query.settings.bundles:
            bundles.use(path)
        self._query = query
        self._request = query.request
        self._inputs = key_inputs(query.request, query.settings)
        self._key = self._inputs.bundle_key() if self._inputs is not None else ""
        self._folders = self._inputs.search if self._inputs is not None else ()

    def exact(self) -> ObjectCode | None:
        """Return the bundled build of exactly this request, or None."""
        rows = list(self._rows())
        for wanted in self._wanted() if rows else ():
            for bundle, row in rows:
                code = (
                    file.code_of(bundle, row, self._folders)
                    if (row.arch, row.kind) == wanted
                    else None
                )
                if code is not None:
                    return code
        return None

    def compatible(self, lacking: RtcompileError) -> ObjectCode:
        """Return a build for another architecture that the device can run; raise `lacking` if there is none."""
        rows = list(self._rows())
        if rows and self._requested() is None and self._request.target == "cubin":
            for row in usable([row for _, row in rows], self._capability()):
                bundle = next(bundle for bundle, each in rows if each is row)
                if code := file.code_of(bundle, row, self._folders):
                    return code
        sentences = [self._sentence(bundle) for bundle in in_use()]
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
        for bundle in in_use():
            rows = file.rows(bundle, self._key)
            if rows and (cuda := bundles.cuda_major()) is not None:
                rows = [row for row in rows if row.cuda == cuda]
                if not rows:
                    file.require_cuda(bundle, cuda)
            for row in rows:
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
        rows = file.rows(bundle, self._key)
        if bundle.problem:
            return f"Bundle {bundle.path}: {bundle.problem}."
        if rows:
            for row in rows:
                if changed := file.difference(bundle, row, self._folders):
                    return f"Bundle {bundle.path} contains it, but {changed}."
            archs_there = ", ".join(sorted({str(row.arch) for row in rows}))
            return (
                f"Bundle {bundle.path} only has {archs_there} code for it; rebuild the bundle with "
                f"{self._wanted_arch() or 'this architecture'}."
            )
        source = self._request.source_digest
        same_program = [row for row in file.rows(bundle) if row.program == self._request.name]
        if not same_program:
            return ""
        if not any(row.source == source for row in same_program):
            what = "from different source"
        elif not any(row.names == self._request.name_expressions for row in same_program):
            what = "with different name expressions"
        else:
            what = "with different options"
        return f"Bundle {bundle.path} contains this program, but built {what}."
