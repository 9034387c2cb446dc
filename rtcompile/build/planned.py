"""Plans a build and compiles it; and the levels of the look-up that need a plan."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from rtcompile import toolkit, tracing
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
from rtcompile.request.units import TimeLimit
from rtcompile.settings import Settings
from rtcompile.store.store import Store
from rtcompile.styling import is_watched


def search(query: Query) -> ObjectCode | None:
    """Return the code from the levels that need a plan; None if it has to be compiled."""
    query.plan = None
    timeout = query.settings.timeout
    if timeout is not None and not isinstance(timeout, TimeLimit):
        query.settings = query.settings.replace(timeout=TimeLimit(timeout, query.begun))
    return None if query.settings.recompile else _reported(query, _looked_up)


def compile(query: Query, *, waits: bool = True, is_searched: bool = True) -> ObjectCode:
    """Return the code, which `search` did not find, as `miss.compile_once` does."""
    shown: AbstractContextManager[None] = nullcontext()
    if query.settings.progress and not query.quiet and is_watched():
        from rtcompile.build import progress

        shown = progress.first_run.waiting()
    with shown:
        ahead = lookup.builds_ahead
        code = None if ahead is None else ahead.take(query, waits=True)
        code = search(query) if code is None and not is_searched else code
        code = _reported(query, partial(_compiled, waits=waits)) if code is None else code
    assert code is not None
    return code


def is_cached(query: Query) -> bool:
    """Return whether a query of `only_cached` code, which `pipeline.look_up` does not find, needs no compiler."""
    try:
        return any(find_in(query) is not None for find_in in _WITH_PLAN)
    except (JitDisabled, ToolkitNotFound):
        return False  # a linker input is not built, or there is no compiler


def _reported(query: Query, find: Callable[[Query], ObjectCode | None]) -> ObjectCode | None:
    """Return the result of `find`; without a compiler, compatible code from a bundle."""
    try:
        try:
            code = find(query)
        except (JitDisabled, ToolkitNotFound) as lacking:
            from rtcompile.build import from_bundle

            code = from_bundle.Search(query).compatible(lacking)
    except RtcompileError as error:
        if not query.quiet:
            lookup.report(query.request, error)
        raise
    if code is not None:
        milliseconds = (time.perf_counter() - query.begun) * 1e3
        code = code.replace(build=code.build.replace(milliseconds=milliseconds))
        if not query.quiet:
            lookup.report(query.request, code, query.settings.log)
    return code


# --- levels that need a plan -----------------------------------------------------------------------


def in_bundles(query: Query) -> Found | None:
    """Return a bundle's code by the planned request, which has no paths and any spelling of the options."""
    if not query.settings.bundles and "rtcompile.bundles.index" not in sys.modules:
        return None
    from rtcompile.build import from_bundle

    code = from_bundle.Search(query).exact()
    # Bundles check their files each time, so no level above keeps the code.
    return None if code is None else Found(code, FileSet(uncacheable="bundled"))


def in_manifests(query: Query) -> Found | None:
    """Return code of the cache whose files have the same contents, whatever their paths or times are."""
    decided = plan_of(query)
    if query.quiet and query.settings.jit:
        return None  # `miss.compile_once` searches the manifests, whose code is rarely current
    with tracing.span("cache", program=query.request.name):
        store = Store.open(query.settings)
        code = store.search(decided.key_inputs, counts=not query.only_cached)
    return _as_found(query, code) if isinstance(code, ObjectCode) else None


def in_shared_stores(query: Query) -> Found | None:
    """Return code from shared stores without a lease; if compiling is allowed, `miss.compile_once` searches them."""
    from rtcompile.build import miss

    settings = query.settings
    query.plan = miss.identified(plan_of(query), settings)
    code = None
    if settings.remote:
        from rtcompile.store import shared

        build = shared.SharedBuild(query.plan.key_inputs, Store.open(settings))
        stores = shared.stores_of(build)
        code = stores and stores.find(build)
    return in_manifests(query) if code is None else _as_found(query, code)


def _as_found(query: Query, code: ObjectCode) -> Found:
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
    if decided.linked_files == FileSet():
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


_WITH_PLAN = (in_bundles, in_manifests)
_WITHOUT_COMPILER = (*_WITH_PLAN, in_shared_stores)


def _looked_up(query: Query) -> ObjectCode | None:
    """Return the code of a request from a level that needs a plan, and keep it in the levels above."""
    for find_in in _WITH_PLAN if query.settings.jit else _WITHOUT_COMPILER:
        found = find_in(query)
        if found is not None:
            lookup.keep(query, found)
            return found.obj
    return None


def keep_known(query: Query) -> None:
    """Write the index entry for a query whose object is in the cache."""
    found = in_manifests(query)
    if found is not None:
        lookup.keep(query, found)


# --- compiling -----------------------------------------------------------------------------------


def _compiled(query: Query, *, waits: bool) -> ObjectCode:
    """Return the code of a request that no level has."""
    settings = query.settings
    store = Store.open(settings)
    decided = plan_of(query)
    try:
        # Without a name, no index entry can say that the last build failed.
        if (query.failed or not query.name()) and settings.jit and not settings.recompile:
            # What was installed or repaired in the last second counts.
            if toolkit.current(settings).depends is not decided.toolchain.depends:
                query.plan = None
                decided = plan_of(query)
            known = store.negative.find(decided.key_inputs)
            if known is not None and (not known.why_nvcc or plans.lack_of_nvcc(decided)):
                from rtcompile.build.failures import as_error

                raise as_error(known.failure, decided, why_nvcc=known.why_nvcc, cached=True)
        # If a shared store may have the code, it is queried before a compiler is started.
        if decided.key_inputs.backend != "nvcc" and settings.jit and not settings.remote:
            from rtcompile.workers import process

            # The compiler starts while modules are imported.
            process.start(decided.toolchain.require_nvrtc().to_load())
        from rtcompile.build import miss  # imports compilers and workers, which hits do not need

        query.plan = miss.identified(decided, settings)
        code = miss.compile_once(query.plan, settings, store, waits=waits)
    except CompileError:
        if not query.failed and store.negative.find(plan_of(query).key_inputs):
            lookup.note_failure(query)
        raise
    found = _as_found(query, code)
    lookup.keep(query, found)
    return found.obj


# --- planning ------------------------------------------------------------------------------------


def plan_of(query: Query) -> Plan:
    """Return the plan of a query, made at first use."""
    if query.plan is None:
        settings = query.settings
        for_links = settings.replace(jit=False) if query.only_cached else settings
        with tracing.span("plan", program=query.request.name):
            query.plan = plan(query.request, settings, query.capability, link_settings=for_links)
    decided: Plan = query.plan
    return decided


def _linked(request: CompileRequest, settings: Settings) -> ObjectCode:
    """Return the code of a source in ``link=``, which is a separate request."""
    return compile(query_of(request, settings), is_searched=False)


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
