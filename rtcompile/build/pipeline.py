"""The entry point of a build: `LEVELS` says where the code of a request is looked for, and `search` walks them.

What is found, or built, is kept in memory and in the index. A hit needs only the modules that are imported at the top.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module

from rtcompile.errors import JitDisabled, ToolkitNotFound, inside_import, warn
from rtcompile.lookup import environment as environments
from rtcompile.lookup import find as lookup
from rtcompile.lookup.find import query_of
from rtcompile.request.object_code import KERNEL_MARKS, hit
from rtcompile.store.folder import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rtcompile.lookup.find import Query
    from rtcompile.request.object_code import Found, ObjectCode
    from rtcompile.request.request import CompileRequest
    from rtcompile.settings import Settings


def _in_bundles(query: Query) -> Found | None:
    if not query.settings.bundles and "rtcompile.lookup.bundles" not in sys.modules:
        return None
    from rtcompile.lookup import bundles

    return bundles.Search(query).exact()


# Where code is looked for, in this order: the value of `BuildInfo.hit`, the function, and what it needs. A function that
# is named by a text is in a module that a hit does not import.
#
# "nothing": the request alone. `find` stops after these levels, and so do batches and the queue of builds ahead.
# "plan": the plan. `is_cached` and `why` stop after this level, since the next ones cost time or write.
# "lock": the plan, and the lock that lets one thread of one process build. A build takes the lock before it searches by
# the plan, since the last holder may have built the same code; so nothing is searched twice.
LEVELS: tuple[tuple[str | None, Callable[[Query], Found | None] | str, str], ...] = (
    ("memory", lookup.in_memory, "nothing"),
    ("bundle", _in_bundles, "nothing"),
    ("disk", lookup.in_index, "nothing"),
    ("disk", "rtcompile.build.planned:in_records", "plan"),
    (None, "rtcompile.build.planned:in_failures", "lock"),  # raises the error
    ("remote", "rtcompile.build.planned:in_shared_stores", "lock"),
    (None, "rtcompile.build.planned:by_compiler", "lock"),
)


def search(query: Query, *needs: str, keeps: bool = True) -> ObjectCode | None:
    """Return the code of a request from the levels with these needs; it is kept in the levels above, and counted."""
    started = time.perf_counter()
    for where, find_in, need in LEVELS:
        if need not in needs:
            continue
        if isinstance(find_in, str):
            module, _, name = find_in.partition(":")
            find_in = getattr(import_module(module), name)
        found = find_in(query)
        if found is not None:
            if keeps and where != "memory":
                lookup.keep(query, found, is_planned=need != "nothing")
            if need != "nothing":
                return found.obj
            if keeps and not query.only_cached and found.obj.build.hit != "bundle":
                count(query.environment.folder, hits=1)
            milliseconds = (time.perf_counter() - started) * 1e3
            files, notes = found.record.files, found.record.notes
            return hit(found.obj, files, str(where), milliseconds, notes)
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
    planned: Any = import_module("rtcompile.build.planned")  # which imports this module
    code: ObjectCode = planned.compile(query)
    return code


def check_kernels(request: CompileRequest, code: ObjectCode) -> None:
    """Warn if a source has ``__global__`` functions but its code has no kernel, as when a template has no instance."""
    if KERNEL_MARKS.get(code.kind, b"") not in code.code and "__global__" in request.source:
        from rtcompile.messages.loading import warn_without_kernels

        warn_without_kernels(request, code)


_MOST_WARNINGS = 3
_warned: set[tuple[str, str]] = set()  # the names and logs of the builds that it has warned of
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
    found: ObjectCode | None = None if ahead is None else ahead.take(query, waits=False)
    if found is not None:
        return found
    # `build.ahead` has searched the levels for its quiet queries.
    found = None if settings.recompile or query.quiet else search(query, "nothing")
    if found is not None:
        lookup.report(request, found, settings.log)
    return found


def is_cached(request: CompileRequest, settings: Settings) -> bool:
    """Return whether a build would need no compiler: a bundle or the local cache has the code."""
    query = query_of(request, settings)
    query.only_cached = True
    try:
        return search(query, "nothing", "plan") is not None
    except (JitDisabled, ToolkitNotFound):
        return False  # a linker input is not built, or there is no compiler


def start_compiler(settings: Settings) -> None:
    """Start the worker process before importing the modules of a miss, if only NVRTC can build the code."""
    here = environments.current()
    by_others = settings.remote or settings.bundles or settings.fallback != "auto"
    if here.loads and settings.jit and not by_others:
        from rtcompile.workers import process

        process.start(here.loads)


def is_found(query: Query) -> bool:
    """Return whether a level has the code or its failure without a plan."""
    return search(query, "nothing", keeps=False) is not None or query.failed
