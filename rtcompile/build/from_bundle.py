"""Where nothing can be compiled: a bundle's build for another architecture, or an error that says what bundles lack."""

from __future__ import annotations

import os
from contextlib import suppress

from rtcompile.errors import JitDisabled, RtcompileError
from rtcompile.lookup import find as lookup
from rtcompile.lookup.bundles import Bundle, Row, Search, UnusableError
from rtcompile.lookup.find import Query
from rtcompile.request import arch as archs
from rtcompile.request.object_code import Found
from rtcompile.request.values import Arch


def compatible(query: Query, lacking: RtcompileError) -> Found:
    """Return a build for another architecture that the device can run; raise `lacking` if there is none."""
    search = Search(query)
    settings = query.settings
    if search.found and search.requested() is None and query.request.target == "cubin":
        capability = _capability(query)
        # Machine code comes before PTX, and the nearest architecture first.
        for bundle, row in sorted(search.found, key=_is_cubin_and_arch, reverse=True):
            is_code = row.kind in ("cubin", "ptx")
            can_run = is_code and archs.runs_on(row.arch, row.kind, capability)
            if can_run and (found := search.load(bundle, row)):
                return found
    description, details = explained(search)
    if not settings.jit:
        raise JitDisabled(
            f"{description} is not in the cache ({settings.cache_dir}): {lacking}; RTCOMPILE_JIT=0 "
            f"forbids compiling it.{details}"
        ) from None
    wanted = f"{description} cannot be compiled: " if details else ""
    raise type(lacking)(f"{wanted}{lacking}{details}") from None


def _capability(query: Query) -> tuple[int, int]:
    return query.capability or lookup.compute_capability()


def _is_cubin_and_arch(found: tuple[Bundle, Row]) -> tuple[bool, Arch]:
    return found[1].kind == "cubin", found[1].arch


def explained(search: Search) -> tuple[str, str]:
    """Return a description of the request, and for each bundle a sentence that explains why it is not found there."""
    request = search.query.request
    try:
        requested = search.requested()
        arch = requested[0] if requested else Arch(*_capability(search.query))
    except RtcompileError:  # no device, for which there is another message
        arch = None
    names = f" ({', '.join(request.name_expressions)})" if request.name_expressions else ""
    sentences = [_sentence(search, bundle, arch) for bundle in search.bundles]
    details = "".join(f" {sentence}" for sentence in sentences if sentence)
    return f"{request.name}{names}{f' for {arch}' if arch else ''}", details


def _sentence(search: Search, bundle: Bundle, arch: Arch | None) -> str:
    """Return a sentence that explains why the build was not found in a bundle."""
    request = search.query.request
    program, names = os.path.basename(request.name), {*request.name_expressions}
    contains = f"Bundle {bundle.path} contains"
    with suppress(UnusableError):
        named = [row for row in bundle.rows() if row.program == program]
        found = [row for of, row in search.found if of is bundle] if named else []
        for row in found:
            if changed := bundle.files(row, search.shape.folders).difference():
                return f"{contains} it, but {changed}."
        if found:
            archs_there = ", ".join(sorted({str(row.arch) for row in found}))
            return (
                f"Bundle {bundle.path} only has {archs_there} code for it; rebuild the bundle with "
                f"{arch or 'this architecture'}."
            )
        same = [row for row in named if row.source == request.source_digest]
        if any({*bundle.object(row).lowered_names} == names for row in same):
            return f"{contains} this program, but built with different options."
        if named:
            what = "with different name expressions" if same else "from different source"
            return f"{contains} this program, but built {what}."
    return f"Bundle {bundle.path}: {bundle.problem}." if bundle.problem else ""
