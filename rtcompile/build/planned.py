"""Plans a build and compiles it; and the levels of the look-up that need a plan."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import rtcompile
from rtcompile import toolkit
from rtcompile.build import plan as plans
from rtcompile.build.plan import Plan
from rtcompile.errors import CompileError, JitDisabled, RtcompileError, ToolkitNotFound
from rtcompile.files.fileset import FileSet
from rtcompile.lookup import environment
from rtcompile.lookup import find as lookup
from rtcompile.lookup.find import Found, Query, query_of
from rtcompile.request.object_code import ObjectCode, files_of
from rtcompile.request.option_table import dropped
from rtcompile.request.request import CompileRequest, with_headers
from rtcompile.request.units import Limits, TimeLimit
from rtcompile.settings import Settings
from rtcompile.store.locks import Busy
from rtcompile.store.store import Store
from rtcompile.styling import is_watched


def compile(query: Query, *, waits: bool = True) -> ObjectCode:
    """Return the code of a request, found or built; raise `Busy` if another builds it, unless the caller `waits`."""
    query.plan = None
    timeout = query.settings.timeout
    if timeout is not None and not isinstance(timeout, TimeLimit):
        query.settings = query.settings.replace(timeout=TimeLimit(timeout, query.begun))
    shown: AbstractContextManager[None] = nullcontext()
    if query.settings.progress and not query.quiet and is_watched():
        from rtcompile.workers import pool

        if pool.Cancellation.current.get() is None:  # a batch shows its own
            shown = rtcompile._load("first_wait")()  # type: ignore[operator]
    with shown:
        ahead = lookup.builds_ahead
        code = None if ahead is None else ahead.take(query, waits=True)
        return _reported(query, waits=waits) if code is None else code


def is_cached(query: Query) -> bool:
    """Return whether a query of `only_cached` code, which `pipeline.look_up` does not find, needs no compiler."""
    try:
        return (in_bundles(query) or in_cache(query)) is not None
    except (JitDisabled, ToolkitNotFound):
        return False  # a linker input is not built, or there is no compiler


def _reported(query: Query, *, waits: bool) -> ObjectCode:
    """Return the code, and call the listeners; without a compiler, compatible code from a bundle."""
    try:
        try:
            code = _compiled(query, waits=waits)
        except (JitDisabled, ToolkitNotFound) as lacking:
            from rtcompile.build import from_bundle

            code = from_bundle.Search(query).compatible(lacking)
    except RtcompileError as error:
        if not query.quiet:
            lookup.report(query.request, error)
        raise
    milliseconds = (time.perf_counter() - query.begun) * 1e3
    code = code.replace(build=code.build.replace(milliseconds=milliseconds))
    if not query.quiet:
        lookup.report(query.request, code, query.settings.log)
    return code


# --- levels that need a plan -----------------------------------------------------------------------


def in_bundles(query: Query) -> Found | None:
    """Return a bundle's code by the planned request, which has no paths and any spelling of the options."""
    if not query.settings.bundles and "rtcompile.lookup.bundles" not in sys.modules:
        return None
    from rtcompile.build import from_bundle

    code = from_bundle.Search(query).exact()
    # Bundles check their files each time, so no level above keeps the code.
    return None if code is None else Found(code, FileSet(uncacheable="bundled"))


def in_cache(query: Query) -> Found | None:
    """Return code of the cache whose files have the same contents, whatever their paths or times are."""
    found = _searched(query, counts=not query.only_cached)
    return _with_files(query, found) if isinstance(found, ObjectCode) else None


def _searched(query: Query, *, counts: bool = True) -> ObjectCode | Callable[[], str]:
    key_inputs = plan_of(query).key_inputs
    return Store.open(query.settings).search(key_inputs, counts=counts)


def _in_shared_stores(query: Query) -> Found | None:
    """Return code from shared stores without a lease, if nothing may be compiled."""
    settings = query.settings
    code = None
    if settings.remote:
        from rtcompile.store import shared

        inputs = plan_of(query).key_inputs
        stores = shared.stores_of(inputs)
        code = stores and stores.find(inputs, Store.open(settings))
    return in_cache(query) if code is None else _with_files(query, code)


def _with_files(query: Query, code: ObjectCode) -> Found:
    """Return code with notes about its options, as the upper levels may keep it."""
    decided = plan_of(query)
    notes = (*decided.options.notes, *dropped(decided.options.flags, code.build.backend))
    if notes:
        notes += code.build.notes
        code = code.replace(build=code.build.replace(notes=notes))
    entry = Store.open(query.settings).entry_of(decided.key_inputs, code)
    if (
        entry is None
        # Such settings may name another compiler on PATH, or relative directories, which the index does not record.
        or (code.build.backend == "nvcc" and plans.nvcc_setting(decided.options))
        # The toolchain was replaced, and may now produce other code.
        or toolkit.current(query.settings, environment.CHECK_SECONDS).depends
        is not decided.toolchain.depends
        or _is_nvrtc_replaced(query)
        # A variable was changed.
        or query.environment is not environment.current()
    ):
        files = files_of(code.build) or FileSet()
        files = files.replaced(uncacheable="not known to hold for the request")
        return Found(code.replace(build=code.build.replace(headers=files)), files)
    if decided.linked_files.is_empty:
        return Found(code, entry.dependencies, entry.object_key)
    files = entry.dependencies.joined(decided.linked_files)
    code = code.replace(build=code.build.replace(headers=files))
    return Found(code, files, entry.object_key)


def _is_nvrtc_replaced(query: Query) -> bool:
    """Return whether NVRTC's library is another one than when the toolchain was last searched for."""
    nvrtc = plan_of(query).toolchain.nvrtc
    try:
        return nvrtc is not None and nvrtc.to_load() != query.environment.loads
    except OSError:
        return True


# --- compiling -----------------------------------------------------------------------------------


def _compiled(query: Query, *, waits: bool) -> ObjectCode:
    """Return the code of a request that the levels without a plan lack, and keep it in them."""
    settings = query.settings
    found = None if settings.recompile else in_bundles(query)
    if found is None and settings.jit:
        found = _with_files(query, _built_once(query, waits=waits))
    elif found is None:
        if not settings.recompile:
            found = in_cache(query) or _in_shared_stores(query)
        if found is None:
            why = Store.open(settings).why(plan_of(query).key_inputs)
            raise JitDisabled(why or "recompile=True needs a compiler")
    lookup.keep(query, found)
    return found.obj


def _built_once(query: Query, *, waits: bool) -> ObjectCode:
    """Return code of the cache, of a shared store or of a compiler, while no other thread or process builds it.

    Only the holder of the lock searches, since the last holder may have built the same, or tried in vain.
    """
    settings, store = query.settings, Store.open(query.settings)
    # Without a name, no index entry can say that the last build failed.
    if (query.failed or not query.name()) and not settings.recompile:
        toolkit.current(settings)  # what was installed or repaired in the last second counts
    plan = plan_of(query)
    limit = settings.timeout
    left = limit.left if isinstance(limit, TimeLimit) else limit
    if left == 0:
        from rtcompile.build import miss

        raise miss.too_late(plan, settings, miss.TOO_MUCH)
    from rtcompile.workers import process

    process.occupy_standard()  # before the lock's file is opened
    with store.building(plan.key_inputs, left, waits=waits) as left:
        if left == 0.0 and not waits:
            raise Busy
        found = partial(store.why, plan.key_inputs) if settings.recompile else _searched(query)
        if isinstance(found, ObjectCode):
            return found
        try:
            if settings.recompile:
                store.negative.forget(plan.key_inputs)
            known = store.negative.find(plan.key_inputs)
            if known is not None and (not known.why_nvcc or plans.lack_of_nvcc(plan)):
                from rtcompile.build.failures import as_error

                raise as_error(known.failure, plan, why_nvcc=known.why_nvcc, cached=True)
            # If a shared store may have the code, it is queried before a compiler is started.
            if plan.key_inputs.backend != "nvcc" and not settings.remote:
                process.start(plan.toolchain.require_nvrtc().to_load())
            from rtcompile.build import miss  # it imports compilers, which hits do not need

            return miss.compile_once(plan, settings, store, found, known, left, waits=waits)
        except CompileError:
            if not query.failed and store.negative.find(plan.key_inputs):
                lookup.note_failure(query)
            raise


def precompile(query: Query) -> None:
    """Have an idle core make the precompiled header of a query's includes, which no build needs yet."""
    settings = query.settings
    if settings.pch and settings.cache_on_disk and settings.jit:
        from rtcompile.build import miss
        from rtcompile.compilers import nvrtc

        decided = plan_of(query)
        nvrtc.precompile(
            miss.unit_for_nvrtc(decided, ()),
            decided.toolchain.require_nvrtc(),
            limits=Limits(memory=settings.memory_limit),
            cache_dir=settings.cache_dir,
            search=decided.search,
        )


# --- planning ------------------------------------------------------------------------------------


def plan_of(query: Query) -> Plan:
    """Return the plan of a query, made at first use."""
    if query.plan is None:
        settings = query.settings
        for_links = settings.replace(jit=False) if query.only_cached else settings
        query.plan = plan(query.request, settings, query.capability, link_settings=for_links)
    decided: Plan = query.plan
    return decided


def _linked(request: CompileRequest, settings: Settings) -> ObjectCode:
    """Return the code of a source in ``link=``, which is a separate request."""
    return compile(query_of(request, settings))


def plan(
    request: CompileRequest,
    settings: Settings,
    capability: tuple[int, int] | None = None,
    *,
    link_settings: Settings | None = None,
) -> Plan:
    """Plan a build; only sources in ``link=`` are compiled, if `link_settings` allow it."""
    request = with_headers(request)
    inputs = None
    if request.link:
        inputs = partial(plans.linker_inputs, request, link_settings or settings, _linked)
    return plans.plan(request, settings, capability, inputs)
