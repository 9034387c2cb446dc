"""Plans a build and compiles it; and the levels of `pipeline.LEVELS` that need more than the request."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import rtcompile
from rtcompile import toolkit
from rtcompile.build import pipeline
from rtcompile.build import plan as plans
from rtcompile.build.plan import Plan
from rtcompile.errors import CompileError, JitDisabled, RtcompileError, ToolkitNotFound
from rtcompile.lookup import environment
from rtcompile.lookup import find as lookup
from rtcompile.lookup.find import Query, query_of
from rtcompile.request.arch import runs_on
from rtcompile.request.object_code import Found, ObjectCode, Record
from rtcompile.request.option_table import dropped
from rtcompile.request.request import DEFAULT_NAME, CompileRequest, with_headers
from rtcompile.request.units import Limits, TimeLimit
from rtcompile.request.values import Arch
from rtcompile.settings import Settings
from rtcompile.store.locks import Busy
from rtcompile.store.store import Store
from rtcompile.styling import is_watched

if TYPE_CHECKING:
    from rtcompile.lookup.bundles import Bundle, Search


def compile(query: Query) -> ObjectCode:
    """Return code that no level finds without a plan; raise `Busy` if another builds it and the query does not wait."""
    query.plan = None
    timeout = query.settings.timeout
    if timeout is not None and not isinstance(timeout, TimeLimit):
        query.settings = query.settings._replace(timeout=TimeLimit(timeout, query.begun))
    shown: AbstractContextManager[None] = nullcontext()
    if query.settings.progress and not query.quiet and is_watched():
        from rtcompile.workers import pool

        if pool.Cancellation.current.get() is None:  # a batch shows its own
            shown = rtcompile._load("first_wait")()  # type: ignore[operator]
    with shown:
        ahead = lookup.builds_ahead
        code = None if ahead is None else ahead.take(query, waits=True)
        return _reported(query) if code is None else code


def _reported(query: Query) -> ObjectCode:
    """Return the code, and call the listeners; without a compiler, compatible code from a bundle."""
    try:
        try:
            code = _built_once(query)
        except (JitDisabled, ToolkitNotFound) as lacking:
            code = _compatible(query, lacking).obj
    except RtcompileError as error:
        if not query.quiet:
            lookup.report(query.request, error)
        raise
    milliseconds = (time.perf_counter() - query.begun) * 1e3
    # The levels above keep the reason for NVCC or for a flag, and not the reason for this miss.
    why = (
        code.build.why if code.build.hit else "; ".join(filter(None, [query.why(), code.build.why]))
    )
    code = code.replace(build=code.build.replace(milliseconds=milliseconds, why=why))
    if not query.quiet:
        lookup.report(query.request, code, query.settings.log)
    return code


def _built_once(query: Query) -> ObjectCode:
    """Return the code from the levels that need a plan, while no other thread or process builds it."""
    from rtcompile.workers import process

    process.occupy_standard()  # before the toolchain's file or a lock file is opened
    settings = query.settings
    # Without a name, no index entry can say that the last build failed.
    if (query.failed or not query.name()) and not settings.recompile:
        toolkit.current()  # notices what was installed or repaired in the last second
    plan = plan_of(query)
    limit = settings.timeout
    left = limit.left if isinstance(limit, TimeLimit) else limit
    if left == 0:
        from rtcompile.build import miss

        raise miss.too_late(query, miss.TOO_MUCH)
    with query.store.building(plan.key_inputs, left, waits=query.waits) as query.seconds:
        if query.seconds == 0.0 and not query.waits:
            raise Busy
        try:
            needs = ("lock",) if settings.recompile else ("plan", "lock")
            code = pipeline.search(query, *needs)
        except CompileError:
            if not query.failed and query.store.failure(plan.key_inputs):
                lookup.note_failure(query)
            raise
    assert code is not None  # the last level builds it, or raises an error
    return code


# --- the levels ------------------------------------------------------------------------------------


def in_records(query: Query) -> Found | None:
    """Return code of the cache whose files have the same contents, whatever their paths or times are."""
    key_inputs = plan_of(query).key_inputs
    found = query.store.search(key_inputs, counts=not query.only_cached)
    if isinstance(found, Found):
        return _with_files(query, found)
    query.missing = found
    return None


def in_failures(query: Query) -> None:
    """Raise the error of the last build, if it would fail again."""
    settings, plan, store = query.settings, query.plan, query.store
    if settings.recompile:
        store.forget_failure(plan.key_inputs)
    elif settings.jit:
        query.failure = known = store.failure(plan.key_inputs, query.missing)
        if known is not None and (not known.reason or plans.lack_of_nvcc(plan)):
            from rtcompile.build.failures import as_error

            raise as_error(known.failure, plan, why_nvcc=known.reason, cached=True)


def in_shared_stores(query: Query) -> Found | None:
    """Return code of a shared store, after writing it to the local cache."""
    settings = query.settings
    if settings.remote and not settings.recompile:
        sharing: Any = rtcompile._load("sharing")
        query.sharing = sharing(query.plan.key_inputs, query.store)
    found = query.sharing and query.sharing.find()
    return None if found is None else _with_files(query, found)


def by_compiler(query: Query) -> Found:
    """Compile the code, under a lease if stores are shared; raise `JitDisabled` if that is forbidden."""
    settings, plan = query.settings, query.plan
    query.why = cache(
        query.missing.why if query.missing else partial(query.store.why, plan.key_inputs)
    )
    if not settings.jit:
        raise JitDisabled(query.why() or "recompile=True needs a compiler")
    # If a shared store may have the code, it is queried before a compiler is started.
    if plan.key_inputs.backend != "nvcc" and not settings.remote:
        from rtcompile.workers import process

        process.start(plan.toolchain.require_nvrtc().to_load())
    from rtcompile.build import miss  # it imports compilers, which hits do not need

    def build(seconds: float | None) -> Found:
        if seconds is not None and seconds <= 0:
            raise miss.too_late(query, miss.BY_OTHERS)
        return miss.Miss(query).run()

    sharing, seconds = query.sharing, query.seconds
    found = sharing.build(build, seconds, query.waits) if sharing else build(seconds)
    return _with_files(query, found)


def _with_files(query: Query, found: Found) -> Found:
    """Return code with notes about its options; mark it as uncacheable if the upper levels must not keep it."""
    decided: Plan = query.plan
    code, record = found.obj, found.record
    notes = (*decided.options.notes, *dropped(decided.options.flags, code.build.backend))
    if notes:
        notes += code.build.notes
        code = code.replace(build=code.build.replace(notes=notes))
    nvrtc = decided.toolchain.nvrtc
    if (
        not record.object_key
        # Such settings may name another compiler on PATH, or relative directories, which the index does not record.
        or (code.build.backend == "nvcc" and plans.nvcc_setting(decided.options))
        # The toolchain was replaced, and may now produce other code.
        or toolkit.current(environment.CHECK_SECONDS).depends is not decided.toolchain.depends
        or (nvrtc is not None and nvrtc.to_load() != query.environment.loads)
        # A variable was changed.
        or query.environment is not environment.current()
    ):
        why = "not known to hold for the request"
        files = code.build.files.replaced(uncacheable=why)
        return Found(code.replace(build=code.build.replace(files=files)), Record(files))
    if not decided.linked_files.is_empty:
        record = record._replace(files=record.files.joined(decided.linked_files))
        code = code.replace(build=code.build.replace(files=record.files))
    return Found(code, record)


# --- planning ------------------------------------------------------------------------------------


def precompile(query: Query) -> None:
    """Have an idle core make the precompiled header of a query's includes, which no build needs yet."""
    settings = query.settings
    if settings.pch and settings.cache_on_disk and settings.jit:
        from rtcompile.build import miss
        from rtcompile.compilers import nvrtc

        decided = plan_of(query)
        prefix = nvrtc.prefix_of(
            miss.unit_for_nvrtc(decided, ()),
            decided.toolchain.require_nvrtc(),
            settings.cache_dir,
            Limits(memory=settings.memory_limit),
            decided.search,
        )
        if prefix is not None:
            prefix.speculate()


def plan_of(query: Query) -> Plan:
    """Return the plan of a query, made at first use, and open its store."""
    if query.plan is None:
        query.plan = plans.plan(query, with_headers(query.request), compile)
        query.store = Store.open(query.settings)
    decided: Plan = query.plan
    return decided


def plan(request: CompileRequest, settings: Settings) -> Plan:
    """Plan a build; only sources in ``link=`` are compiled."""
    return plan_of(query_of(request, settings))


def add_to_index(request: CompileRequest, capability: tuple[int, int] | None) -> None:
    """Write the index entry with which a request finds its build, if the cache has that."""
    with suppress(RtcompileError):
        query = query_of(request, Settings.from_environ(), capability)
        query.only_cached = True
        pipeline.search(query, "plan")  # which keeps what it finds in the index


# --- where nothing can be compiled ---------------------------------------------------------------


def _compatible(query: Query, lacking: RtcompileError) -> Found:
    """Return a build for another architecture that the device can run; raise `lacking` if there is none."""
    from rtcompile.lookup import bundles

    search = bundles.Search(query)
    settings = query.settings
    if search.found and search.requested() is None and query.request.target == "cubin":
        capability = _capability(query)
        # Machine code comes before PTX, and the nearest architecture first.
        kinds = [(row.kind == "cubin", row.arch, bundle, row) for bundle, row in search.found]
        for *_, bundle, row in sorted(kinds, key=lambda each: each[:2], reverse=True):
            is_code = row.kind in ("cubin", "ptx")
            can_run = is_code and runs_on(row.arch, row.kind, capability)
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
    from rtcompile.lookup.bundles import UnusableError

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
            archs_there = ", ".join(sorted({row.arch_option for row in found}))
            return (
                f"Bundle {bundle.path} only has {archs_there} code for it; rebuild the bundle with "
                f"{arch or 'this architecture'}."
            )
        same = [row for row in named if row.source == request.source_digest]
        if any({*bundle.object(row).lowered_names} == names for row in same):
            return f"{contains} this program, but built with different options."
        if same or (named and program != DEFAULT_NAME):
            what = "with different name expressions" if same else "from different source"
            return f"{contains} this program, but built {what}."
    return f"Bundle {bundle.path}: {bundle.problem}." if bundle.problem else ""
