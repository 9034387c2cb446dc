"""Plans a build, searches the levels that need a plan (bundles, manifests, shared stores), or compiles it."""

from __future__ import annotations

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
    return None if query.settings.recompile else _reported(query, _found)


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
    """Return whether a build that `lookup.find` does not find would need no compiler."""
    settings = query.settings
    try:
        if _in_bundles(query):
            return True
        made = plan_of(query, settings.replace(jit=False))
        return not Store.open(settings).why(made.key_inputs)
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


def _in_bundles(query: Query) -> Found | None:
    if not (query.settings.bundles or any(where == "bundle" for where, _, _ in lookup.LEVELS)):
        return None
    from rtcompile.build import from_bundle

    code = from_bundle.Search(query).exact()
    # Bundles check their files each time, so no level above keeps the code.
    return None if code is None else Found(code, FileSet(uncacheable="bundled"))


def _in_manifests(query: Query) -> Found | None:
    decided = plan_of(query)
    with tracing.span("cache", program=query.request.name):
        code = Store.open(query.settings).search(decided.key_inputs)
    return _as_found(query, code) if isinstance(code, ObjectCode) else None


def _in_shared_stores(query: Query) -> Found | None:
    """Return code from shared stores if compiling is forbidden, since then no lease is needed."""
    from rtcompile.build import miss

    settings = query.settings
    query.plan = miss.identified(plan_of(query), settings)
    code = None
    if settings.remote:
        from rtcompile.store import shared

        build = shared.SharedBuild(query.plan.key_inputs, Store.open(settings))
        stores = shared.stores_of(build)
        code = stores and stores.find(build)
    return _in_manifests(query) if code is None else _as_found(query, code)


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


def _found(query: Query) -> ObjectCode | None:
    """Return the code of a planned request: from a bundle, by the manifests, or from a shared store."""
    found = _in_bundles(query)
    if found is None and query.quiet and query.settings.jit:
        plan_of(query)  # `miss.compile_once` searches the manifests, whose code is rarely current
        return None
    found = found or _in_manifests(query)
    if found is None and not query.settings.jit:
        found = _in_shared_stores(query)
    if found is None:
        return None
    lookup.keep(query, found)
    return found.obj


def keep_known(query: Query) -> None:
    """Write the index entry for a query whose object is in the cache."""
    found = _in_manifests(query)
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


def plan_of(query: Query, link_settings: Settings | None = None) -> Plan:
    """Return the plan of a query, made at first use."""
    if query.plan is None:
        with tracing.span("plan", program=query.request.name):
            given = query.request, query.settings, query.capability
            query.plan = plan(*given, link_settings=link_settings)
    decided: Plan = query.plan
    return decided


def _linked(request: CompileRequest, settings: Settings) -> ObjectCode:
    """Return the code of a source in ``link=``, which is a separate request."""
    query = query_of(request, settings)
    found = None if settings.recompile else lookup.find(query)
    return compile(query, is_searched=False) if found is None else found


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
