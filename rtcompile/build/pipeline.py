"""The entry point of a build: looks a request up, and plans and builds it only if it is not found.

These levels are searched in order, and what is found, or built, is kept in memory and in the index:

| level | finds | needs |
|---|---|---|
| builds ahead of use (`pipeline.find`) | a result that nobody has taken yet | |
| memory | what this process found or built before | |
| bundles | a package's builds, by the request without its folders | |
| index | an object of the cache, while the files that its entry lists are unchanged | |
| bundles | the same by the planned request, in any spelling | a plan |
| manifests | an object of the cache for files of the same contents, in any folder | a plan, the build's lock |
| failures, shared stores, a compiler (`miss.compile_once`) | the error or the code | a plan, the build's lock |

`LEVELS` are those that need no plan, besides the builds ahead; `planned` has the others. A hit needs only the modules
that are imported at the top.
"""

from __future__ import annotations

import sys
import time

from rtcompile.errors import inside_import, warn
from rtcompile.lookup import environment as environments
from rtcompile.lookup import find as lookup
from rtcompile.lookup.find import query_of
from rtcompile.request.object_code import KERNEL_MARKS, hit
from rtcompile.store.folder import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from rtcompile.lookup.find import Found, Query
    from rtcompile.request.object_code import ObjectCode
    from rtcompile.request.request import CompileRequest
    from rtcompile.settings import Settings


def _in_bundles(query: Query) -> Found | None:
    if not query.settings.bundles and "rtcompile.lookup.bundles" not in sys.modules:
        return None
    from rtcompile.lookup import bundles

    for path in query.settings.bundles:
        bundles.use(path)
    return bundles.find(query)


# The value of `BuildInfo.hit`, and the function that finds code.
LEVELS: tuple[tuple[str, Callable[[Query], Found | None]], ...] = (
    ("memory", lookup.in_memory),
    ("bundle", _in_bundles),
    ("disk", lookup.in_index),
)


def look_up(query: Query) -> ObjectCode | None:
    """Return the code of a request if a level has it that needs no plan, and keep it in the levels above."""
    if query.identity is None:
        return None
    started = time.perf_counter()
    for where, find_in in LEVELS:
        found = find_in(query)
        if found is not None:
            if where != "memory":
                lookup.keep(query, found)
            if not query.only_cached and found.obj.build.hit != "bundle":
                count(query.environment.folder, hits=1)
            milliseconds = (time.perf_counter() - started) * 1e3
            return hit(found.obj, found.files, where, milliseconds, found.notes)
    return None


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

    return planned.compile(query)


def check_kernels(request: CompileRequest, code: ObjectCode) -> None:
    """Warn if a source has ``__global__`` functions and its code no kernel, as of a template without an instance."""
    if KERNEL_MARKS.get(code.kind, b"") not in code.code and "__global__" in request.source:
        from rtcompile.inspect.symbols import warn_without_kernels

        warn_without_kernels(request, code)


_MOST_WARNINGS = 3
_warned: set[tuple[str, str]] = set()  # the names and logs of those that have been
_UNUSED = ("177-D", "550-D")  # a variable that is not used, or only set


def warn_of_source(request: CompileRequest, code: ObjectCode) -> None:
    """Warn with the first of the compiler's warnings about the source's own lines, where it was compiled just now."""
    log = code.build.log
    if code.build.hit is None and "warning" in log and (request.name, log) not in _warned:
        _warned.add((request.name, log))
        from rtcompile.messages.diagnostics import line_in_source

        found = [
            each
            for each in code.build.warnings
            if each.code not in _UNUSED
            and (
                line_in_source(each, request.source, request.name) or " for entry " in each.message
            )
        ]
        for each in found[:_MOST_WARNINGS]:
            warn(f"{each}" + (f". {each.hint}" if each.hint else ""))


def find(query: Query) -> ObjectCode | None:
    """Return the code of a request if it is found without a plan, and call the listeners."""
    request, settings = query.request, query.settings
    ahead = lookup.builds_ahead
    found = None if ahead is None else ahead.take(query, waits=False)
    if found is not None:
        return found
    # `build.ahead` has searched the levels for its quiet queries.
    found = None if settings.recompile or query.quiet else look_up(query)
    if found is not None:
        lookup.report(request, found, settings.log)
    return found


def is_cached(request: CompileRequest, settings: Settings) -> bool:
    """Return whether a build would need no compiler: a bundle or the local cache has the code."""
    query = query_of(request, settings)
    query.only_cached = True
    if look_up(query) is not None:
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
    """Return whether a level has the code or its failure without a plan; the result is not kept."""
    return any(find_in(query) is not None for _, find_in in LEVELS) or query.failed
