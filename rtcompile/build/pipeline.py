"""The entry point of a build: looks a request up, and plans and builds it only if it is not found.

A hit needs only the modules that are imported at the top.
"""

from __future__ import annotations

import sys

from rtcompile.errors import inside_import
from rtcompile.lookup import environment as environments
from rtcompile.lookup import find as lookup
from rtcompile.lookup.find import query_of
from rtcompile.request.object_code import KERNEL_MARKS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rtcompile.lookup.find import Query
    from rtcompile.request.object_code import ObjectCode
    from rtcompile.request.request import CompileRequest
    from rtcompile.settings import Settings


def build(request: CompileRequest, settings: Settings) -> ObjectCode:
    """Return the code of `request`, from a bundle, from the cache or from a compiler."""
    query = query_of(request, settings)
    found = find(query)
    if found is not None:
        return found
    if inside := inside_import():
        raise inside
    # A request without identity, such as one with sources in ``link=``, is only found once it is planned.
    if not query.failed and query.identity is not None:
        start_compiler(settings)
    from rtcompile.build import planned

    return planned.compile(query, is_searched=False)


def check_kernels(request: CompileRequest, code: ObjectCode) -> None:
    """Warn if a source has ``__global__`` functions and its code no kernel, as of a template without an instance."""
    if KERNEL_MARKS.get(code.kind, b"") not in code.code and "__global__" in request.source:
        from rtcompile.inspect.symbols import warn_without_kernels

        warn_without_kernels(request, code)


def find(query: Query) -> ObjectCode | None:
    """Return the code of a request if it is found without a plan, and call the listeners."""
    request, settings = query.request, query.settings
    ahead = lookup.builds_ahead
    found = None if ahead is None else ahead.take(query, waits=False)
    if found is not None:
        return found
    # `build.ahead` has searched the levels for its quiet queries.
    found = None if settings.recompile or query.quiet else in_levels(query)
    if found is not None:
        if settings.trace or "rtcompile.tracing" in sys.modules:
            import time

            from rtcompile import tracing

            now = time.monotonic()
            begin = now - found.build.milliseconds / 1e3
            tracing.add("cache", begin, now, program=request.name)
        lookup.report(request, found, settings.log)
    return found


def in_levels(query: Query, *, counts: bool = True) -> ObjectCode | None:
    """Return the levels' code for a request; ``RTCOMPILE_BUNDLES`` adds the level for bundles."""
    _use_bundles(query.settings)
    return lookup.find(query, counts=counts)


def _use_bundles(settings: Settings) -> None:
    if settings.bundles:
        from rtcompile.bundles import index

        for path in settings.bundles:
            index.use(path)


def is_cached(request: CompileRequest, settings: Settings) -> bool:
    """Return whether a build would need no compiler: a bundle or the local cache has the code."""
    query = query_of(request, settings)
    if in_levels(query, counts=False) is not None:
        return True
    from rtcompile.build import planned

    return planned.is_cached(query)


def start_compiler(settings: Settings) -> None:
    """Start the worker process before importing the modules of a miss, if only NVRTC can build the code."""
    here = environments.current()
    by_others = settings.remote or settings.bundles or settings.fallback != "auto"
    if here.loads and settings.jit and not by_others:
        from rtcompile.workers import process

        process.start(here.loads)


def is_found(query: Query) -> bool:
    """Return whether a level has the code or its failure; the result is not kept."""
    _use_bundles(query.settings)
    return any(find_in(query) is not None for _, find_in, _ in lookup.LEVELS) or query.failed
