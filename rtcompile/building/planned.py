"""Plans the builds that the look-up did not find, searches the cache by what was planned, or compiles."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, TypeVar

from rtcompile import bundles, toolkit
from rtcompile.building import plan as plans
from rtcompile.building.plan import Plan, for_this_device
from rtcompile.cache.store import Store
from rtcompile.core import memory_headers
from rtcompile.core.option_table import dropped
from rtcompile.core.request import CompileRequest, ObjectCode
from rtcompile.core.value import replace
from rtcompile.errors import CompileError, JitDisabled, RtcompileError, ToolkitNotFound
from rtcompile.lookup import device
from rtcompile.lookup import find as lookup
from rtcompile.lookup.query import Query, query_of
from rtcompile.settings import Settings
from rtcompile.watching import tracing

if TYPE_CHECKING:
    from rtcompile.workers.pool import Cancellation


_T = TypeVar("_T")
Planner = Callable[[CompileRequest, Settings], Plan]


def build(request: CompileRequest, settings: Settings, query: Query | None) -> ObjectCode:
    """Return the code of a request that `lookup.find` does not have; raises as `pipeline.build`."""
    found = search(request, settings, query, plan)
    return found if isinstance(found, ObjectCode) else found.compile()


def _found_or_built(request: CompileRequest, settings: Settings) -> ObjectCode:
    """Return the code of a source to be linked, which is a request of its own."""
    query = query_of(request, settings)
    found = None if query is None or settings.recompile else lookup.find(query)
    return build(request, settings, query) if found is None else found


class Missing:
    """A build that neither a bundle nor the local cache has, with its plan."""

    __slots__ = ("_may_share", "_started", "plan", "query", "request", "settings")

    def __init__(
        self,
        request: CompileRequest,
        settings: Settings,
        query: Query | None,
        decided: Plan,
        started: float,
    ) -> None:
        self.request = request
        self.settings = settings
        self.query = query
        self.plan = decided
        self._started = started
        self._may_share: bool | None = None

    def compile(self) -> ObjectCode:
        """Return the code, from a compiler or a shared store; raises as `build`."""
        code = _or_shipped(
            self.request, self.settings, lambda: _compiled(self.query, self.plan, self.settings)
        )
        return _announced(code, self.request, self.settings, self._started)

    def is_like(self, other: Missing) -> bool:
        """Say whether both differ in their sources alone, and may be compiled by one worker."""
        own, its = self.plan, other.plan
        # A batch's plan is made once for all similar builds: see `plan.Planner`.
        return (
            own.options is its.options
            and own.choice is its.choice
            and own.toolchain is its.toolchain
            and self.settings is other.settings
            and self.may_share
            and other.may_share
        )

    @property
    def may_share(self) -> bool:
        """Whether a worker may compile it with others: see `alike.may_share`."""
        if self._may_share is None:
            from rtcompile.building import alike

            # What failed before, or is NVCC's, is not compiled beside others.
            self._may_share = alike.may_share(self.plan, self.settings) and not (
                Store.open(self.settings).negative.find(self.plan.question)
            )
        return self._may_share


def compile_alike(
    missing: Sequence[Missing], cancellations: Sequence[Cancellation]
) -> Generator[tuple[int, ObjectCode] | None]:
    """Compile similar builds in one worker: see `alike.compile_alike`."""
    from rtcompile.building import alike

    settings = missing[0].settings
    _start_compiler(missing[0].plan, settings)
    found = [each.plan for each in missing]
    for made in alike.compile_alike(found, settings, Store.open(settings), cancellations):
        if made is None:
            yield None
            continue
        at, code = made
        one = missing[at]
        code = _kept(code, one.query, one.plan, settings, Store.open(settings))
        yield at, _announced(code, one.request, settings, one._started)


def search(
    request: CompileRequest, settings: Settings, query: Query | None, planner: Planner
) -> ObjectCode | Missing:
    """Return the code of `request` from a bundle or the cache by its plan, else what is missing.

    An index entry will lead to it from `query`, the look-up that found nothing. `planner` makes the
    plan; a batch plans similar requests once.
    """
    started = time.perf_counter()
    found = _or_shipped(request, settings, lambda: _found(request, settings, query, planner))
    if isinstance(found, ObjectCode):
        return _announced(found, request, settings, started)
    return Missing(request, settings, query, found, started)


def _announced(
    code: ObjectCode, request: CompileRequest, settings: Settings, started: float
) -> ObjectCode:
    milliseconds = (time.perf_counter() - started) * 1e3
    code = replace(code, build=replace(code.build, milliseconds=milliseconds))
    lookup.report(request, code, settings.log)
    return code


def with_headers(request: CompileRequest) -> CompileRequest:
    """Return the request with the folder that its headers seem to be in, which is searched first."""
    if not request.headers:
        return request
    option = f"-I{memory_headers.folder(request.headers)}"
    if option in request.options:
        return request
    return request.replace(options=(option, *request.options))


def is_cached(request: CompileRequest, settings: Settings) -> bool:
    """Say whether a build that `lookup.find` does not have would need no compiler."""
    if _shipped(request, settings) is not None:
        return True
    try:
        decided = plan(request, settings, link_settings=settings.replace(jit=False))
    except (
        JitDisabled,
        ToolkitNotFound,
    ):  # an input of the linker is not built; no compiler at all
        return False
    return not Store.open(settings).why(decided.question)


def _or_shipped(
    request: CompileRequest, settings: Settings, find: Callable[[], _T]
) -> _T | ObjectCode:
    """Return what `find` finds; where a compiler is lacking, what a bundle has in its place."""
    try:
        try:
            return find()
        except (JitDisabled, ToolkitNotFound) as lacking:
            from rtcompile.building import shipped

            return shipped.instead(request, settings, lacking)
    except RtcompileError as error:
        lookup.report(request, error)
        raise


def _shipped(request: CompileRequest, settings: Settings) -> ObjectCode | None:
    for path in settings.bundles:
        bundles.use_bundle(path)
    if not bundles.in_use():
        return None
    from rtcompile.building import shipped

    return shipped.find(request, settings)


def _found(
    request: CompileRequest, settings: Settings, query: Query | None, planner: Planner
) -> ObjectCode | Plan:
    """Return the code, or the plan of a build that is not in the cache."""
    code = None if settings.recompile else _shipped(request, settings)
    if code is not None:
        return code
    with tracing.span("plan", program=request.name):
        decided = planner(request, settings)
    with tracing.span("cache", program=request.name):
        store = Store.open(settings)
        code = None if settings.recompile else store.find(decided.question)
    return decided if code is None else _kept(code, query, decided, settings, store)


def _compiled(query: Query | None, decided: Plan, settings: Settings) -> ObjectCode:
    """Return the code of a plan that is not in the cache."""
    store = Store.open(settings)
    try:
        if settings.jit and not settings.recompile:
            failure = store.negative.failure(decided.question)
            if failure is not None:
                from rtcompile.building.failures import as_error

                raise as_error(failure, decided, cached=True)
        _start_compiler(decided, settings)
        from rtcompile.building import miss  # with compilers and workers, which hits do not need

        decided = miss.identified(decided, settings)
        try:
            code = miss.compile_once(decided, settings, store)
        except miss.AnotherCapabilityError:
            decided = plan(decided.request, settings, device.confirmed_compute_capability)
            code = miss.compile_once(decided, settings, store, confirmed=True)
    except CompileError:
        if query and not query.failed and store.negative.failure(decided.question):
            lookup.note_failure(query, store.publish)
        raise
    return _kept(code, query, decided, settings, store)


def _start_compiler(decided: Plan, settings: Settings) -> None:
    # If a shared store may have the code, no compiler is started before it was asked.
    if decided.backend != "nvcc" and settings.jit and not settings.remote:
        from rtcompile.workers import process

        # It comes up while modules are imported.
        process.start(decided.toolchain.require_nvrtc().to_load())


def _kept(
    code: ObjectCode, query: Query | None, decided: Plan, settings: Settings, store: Store
) -> ObjectCode:
    """Return the code with notes about its options, after an index entry leads from its request to it."""
    notes = (*decided.options.notes, *dropped(decided.options.flags, code.build.backend))
    if notes:
        code = replace(code, build=replace(code.build, notes=notes))
    entry = store.entry_of(decided.question, code)
    depends = decided.toolchain.depends
    if (
        query is None
        or entry is None
        # What such a compiler reads is not stated: another one on PATH, relative directories.
        or (code.build.backend == "nvcc" and plans.nvcc_setting(decided.options))
        # The toolchain was replaced meanwhile, and this is not what it would make now.
        or toolkit.current(settings).depends is not depends
    ):
        return code
    provided = [directory.path for directory in decided.toolchain.search]
    lookup.keep(query, code, entry.dependencies, entry.object_key, provided, store.publish)
    return code


def index(
    request: CompileRequest, settings: Settings, capability: tuple[int, int] | None = None
) -> None:
    """Have an index entry lead from a request, on such a device, to what the cache has for it."""
    decided = plan(request, settings, None if capability is None else lambda: capability)
    store = Store.open(settings)
    code = store.find(decided.question)
    if code is not None:
        query = query_of(request, settings, capability)
        _kept(code, query, decided, settings, store)


def plan(
    request: CompileRequest,
    settings: Settings,
    capability: Callable[[], tuple[int, int]] | None = None,
    *,
    link_settings: Settings | None = None,
) -> Plan:
    """Plan a build; only sources in ``link=`` are compiled, if `link_settings` allow it."""
    request = with_headers(request)
    if request.may_pass_over_arch:
        request = for_this_device(request, settings)
    chosen = plans.target(request, settings, capability)
    if not request.link:
        return plans.plan(request, settings, chosen)
    from rtcompile.building import links

    given = links.inputs(request, chosen.choice.arch, link_settings or settings, _found_or_built)
    return plans.plan(request, settings, chosen, given, links.needed_option(given))
