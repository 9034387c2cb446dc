"""Turns a request into code: makes a plan, looks into bundles and the cache, or compiles.

A kernel with the same arguments as an earlier one may skip this: see `rtcompile.cache.answers`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, TypeVar

from rtcompile import bundles, toolkit
from rtcompile.building import device
from rtcompile.building import plan as plans
from rtcompile.building.plan import Plan, for_this_device
from rtcompile.cache import kept_answers
from rtcompile.cache.store import Store
from rtcompile.cache.words import CUPY
from rtcompile.core import memory_headers
from rtcompile.core.option_table import dropped
from rtcompile.core.request import CompileRequest, ObjectCode
from rtcompile.core.value import replace
from rtcompile.errors import JitDisabled, RtcompileError, ToolkitNotFound
from rtcompile.settings import Settings
from rtcompile.watching import tracing
from rtcompile.watching.logs import announce, counters, listeners

if TYPE_CHECKING:
    from rtcompile.workers.pool import Cancellation

__all__ = [
    "build",
    "capability_asked",
    "for_this_device",
    "is_cached",
    "keep_answer",
    "look",
    "plan",
    "with_headers",
]


_T = TypeVar("_T")
Planner = Callable[[CompileRequest, Settings], Plan]


def build(
    request: CompileRequest, settings: Settings, words: Sequence[str] | None = None
) -> ObjectCode:
    """Return the code of `request`, from a bundle, from the cache or from a compiler.

    With `words`, the result is kept for `cache.answers`, which finds it by the same words.

    Raises
    ------
    CompileError, ToolkitNotFound, UnsupportedArch, InvalidRequest, JitDisabled
    """
    found = look(request, settings, words)
    return found if isinstance(found, ObjectCode) else found.compile()


class Missing:
    """A build that neither a bundle nor the local cache has, with its plan."""

    __slots__ = ("_may_share", "_started", "_words", "plan", "request", "settings")

    def __init__(
        self,
        request: CompileRequest,
        settings: Settings,
        words: Sequence[str] | None,
        decided: Plan,
        started: float,
    ) -> None:
        self.request = request
        self.settings = settings
        self.plan = decided
        self._words = words
        self._started = started
        self._may_share: bool | None = None

    def compile(self) -> ObjectCode:
        """Return the code, from a compiler or a shared store; raises as `build`."""
        code = _or_shipped(
            self.request, self.settings, lambda: _compiled(self.plan, self.settings, self._words)
        )
        return _announced(code, self.request, self.settings, self._started, self._words)

    def is_like(self, other: Missing) -> bool:
        """Say whether both differ in their sources alone, and may be compiled by one worker."""
        own, its = self.plan, other.plan
        # A batch's plan is made once for all that are alike: see `plan.Planner`.
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

            self._may_share = alike.may_share(self.plan, self.settings)
        return self._may_share


def compile_alike(
    missing: Sequence[Missing], cancellations: Sequence[Cancellation]
) -> Generator[tuple[int, ObjectCode] | None]:
    """Compile builds that are alike in one worker: see `alike.compile_alike`."""
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
        code = _kept(code, one.plan, settings, Store.open(settings), None)
        yield at, _announced(code, one.request, settings, one._started)


def look(
    request: CompileRequest,
    settings: Settings,
    words: Sequence[str] | None = None,
    planned: Planner | None = None,
) -> ObjectCode | Missing:
    """Return the code of `request` from a bundle or the local cache, else what is missing.

    A batch looks for all of its builds in one thread, and plans those alike once, by `planned`.
    Raises as `build`.
    """
    started = time.perf_counter()
    request = with_headers(request, settings)
    found = _or_shipped(
        request, settings, lambda: _found(request, settings, words, planned or plan)
    )
    if isinstance(found, ObjectCode):
        return _announced(found, request, settings, started, words)
    return Missing(request, settings, words, found, started)


def _announced(
    code: ObjectCode,
    request: CompileRequest,
    settings: Settings,
    started: float,
    words: Sequence[str] | None = None,
) -> ObjectCode:
    milliseconds = (time.perf_counter() - started) * 1e3
    code = replace(code, build=replace(code.build, milliseconds=milliseconds))
    announce(request, code, settings.log, words)
    return code


def with_headers(request: CompileRequest, settings: Settings) -> CompileRequest:
    """Return the request with the folder that its headers seem to be in, which is searched first."""
    if not request.headers:
        return request
    option = f"-I{memory_headers.folder(request.headers)}"
    if option in request.options:
        return request
    return request.replace(options=(option, *request.options))


def is_cached(request: CompileRequest, settings: Settings) -> bool:
    """Say whether a build would need no compiler: a bundle or the local cache has the code."""
    request = with_headers(request, settings)
    if _shipped(request, settings) is not None:
        return True
    try:
        decided = plan(request, settings, link_settings=settings._replace(jit=False))
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
        for listen in (*listeners, *counters):
            listen(request, error, None)
        raise


def _shipped(request: CompileRequest, settings: Settings) -> ObjectCode | None:
    for path in settings.bundles:
        bundles.use_bundle(path)
    if not bundles.in_use():
        return None
    from rtcompile.building import shipped

    return shipped.find(request, settings)


def _found(
    request: CompileRequest, settings: Settings, words: Sequence[str] | None, planned: Planner
) -> ObjectCode | Plan:
    """Return the code, or the plan of a build that is not in the cache."""
    code = None if settings.recompile else _shipped(request, settings)
    if code is not None:
        return code
    with tracing.span("plan", program=request.name):
        decided = planned(request, settings)
    with tracing.span("cache", program=request.name):
        store = Store.open(settings)
        code = None if settings.recompile else store.find(decided.question)
    return decided if code is None else _kept(code, decided, settings, store, words)


def _compiled(decided: Plan, settings: Settings, words: Sequence[str] | None) -> ObjectCode:
    """Return the code of a plan that is not in the cache."""
    store = Store.open(settings)
    _start_compiler(decided, settings)
    from rtcompile.building import miss  # with compilers and workers, which hits do not need

    try:
        code = miss.compile_once(decided, settings, store)
    except miss.AnotherCapabilityError:
        decided = plan(decided.request, settings, device.confirmed_compute_capability)
        code = miss.compile_once(decided, settings, store, confirmed=True)
    return _kept(code, decided, settings, store, words)


def _start_compiler(decided: Plan, settings: Settings) -> None:
    # If a shared store may have the code, no compiler is started before it was asked.
    if decided.backend != "nvcc" and settings.jit and not settings.remote:
        from rtcompile.workers import process

        # It comes up while modules are imported.
        process.start(decided.toolchain.require_nvrtc().to_load())


def _kept(
    code: ObjectCode,
    decided: Plan,
    settings: Settings,
    store: Store,
    words: Sequence[str] | None,
    capability: tuple[int, int] | None = None,
) -> ObjectCode:
    """Return the code with notes about its options, after it was kept under its words.

    They are asked by this device, or by one of `capability`.
    """
    entry = store.entry_of(decided.question, code) if words is not None else None
    depends = decided.toolchain.depends
    if (
        words is not None
        and entry is not None
        and not (code.build.backend == "nvcc" and plans.nvcc_setting(decided.options))
        # Else the toolchain was replaced meanwhile, and this is not what it answers now.
        and toolkit.current(settings).depends is depends
    ):
        if capability is None:
            capability = capability_asked(decided.request)
        provided = [directory.path for directory in decided.toolchain.search]
        library = decided.toolchain.nvrtc
        loads = "" if library is None else library.to_load()
        read = entry.dependencies
        kept_answers.keep(words, capability, code, read, depends, provided, loads, store.publish)
    notes = (*decided.options.notes, *dropped(decided.options.flags, code.build.backend))
    return replace(code, build=replace(code.build, notes=notes)) if notes else code


def capability_asked(request: CompileRequest) -> tuple[int, int]:
    """Return with which capability `cache.answers` is asked for a request's words here."""
    return device.compute_capability() if request.arch is None else CUPY


def keep_answer(
    request: CompileRequest,
    settings: Settings,
    words: Sequence[str],
    capability: tuple[int, int],
) -> None:
    """Keep what the cache has for a request as the answer to its words; nothing if it has none.

    Parameters
    ----------
    request, settings
        What the words mean: `look` would find the same for them.
    words : sequence of str
        The words.
    capability : (int, int)
        That of the devices which will ask, or `words.CUPY`.
    """
    decided = plan(request, settings, lambda: capability)
    store = Store.open(settings)
    code = store.find(decided.question)
    if code is not None:
        _kept(code, decided, settings, store, words, capability)


def plan(
    request: CompileRequest,
    settings: Settings,
    capability: Callable[[], tuple[int, int]] | None = None,
    *,
    link_settings: Settings | None = None,
) -> Plan:
    """Return the plan of a build. It compiles only sources in ``link=``.

    With `link_settings` that forbid compiling, it raises `JitDisabled` if such a source is not
    cached.
    """
    request = with_headers(request, settings)
    chosen = plans.target(request, settings, capability)
    if not request.link:
        return plans.plan(request, settings, chosen)
    from rtcompile.building import links

    given = links.inputs(request, chosen.choice.arch, link_settings or settings, build)
    return plans.plan(request, settings, chosen, given, links.needed_option(given))
