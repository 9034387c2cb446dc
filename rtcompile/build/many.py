"""Many builds at once: results in order, errors per item, and nothing left running when interrupted."""

from __future__ import annotations

import rtcompile
from rtcompile.build import pipeline
from rtcompile.errors import (
    BatchError,
    InvalidRequest,
    RtcompileError,
    inside_import,
    public,
    shown,
)
from rtcompile.lookup import environment as environments
from rtcompile.lookup import find as lookup
from rtcompile.lookup.find import query_of
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.request.values import items, one_of
from rtcompile.settings import refuse_contradiction
from rtcompile.store.folder import count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from typing import Any

    from rtcompile.build.batch import BuildFuture
    from rtcompile.lookup.find import Query
    from rtcompile.request.values import Fallback
    from rtcompile.settings import Settings

_BUILDS = "CompileRequests, or RawModules and RawKernels with code"


@public
def submit_many(
    builds: Iterable[Any],
    *,
    fallback: Fallback | None = None,
    pch: bool | None = None,
    timeout: float | None = None,
    memory_limit: int | str | None = None,
) -> list[BuildFuture]:
    """Start many builds and return their futures, in order.

    Parameters, errors and warnings as for `compile_many`; each future gives its own `ObjectCode` or error.

    Examples
    --------
    >>> request = rtcompile.CompileRequest("__global__ void k() {}", arch="sm_80")
    >>> [future] = rtcompile.submit_many([request])
    >>> future.result().kind
    'cubin'
    """
    overrides = {"fallback": fallback, "pch": pch, "timeout": timeout, "memory_limit": memory_limit}
    given = items("builds", builds, _BUILDS)
    return _with_checks(given, submit(given, overrides))


def _submit_to(
    executor: Any, builds: Sequence[Any], overrides: Mapping[str, Any]
) -> Sequence[BuildFuture]:
    submit_to: Any = rtcompile._load("submit_to")
    start = submit_to(executor)
    queries = _queries(builds, overrides, elsewhere=True)
    # Do not also compile constructed kernels here.
    for item, (query, _) in zip(builds, queries, strict=True):
        if not isinstance(item, CompileRequest):
            item._build.used = True
        if lookup.builds_ahead is not None:
            lookup.builds_ahead.leave(query)
    return [start(query.request, given) for query, given in queries]


def submit(builds: Sequence[Any], overrides: Mapping[str, Any]) -> list[BuildFuture]:
    """Start many builds as `submit_many` does, but do not check that the codes have kernels: the caller does."""
    if inside := inside_import():  # its threads would wait for that import
        raise inside
    from rtcompile.build.batch import Batch, Build

    # Here and not in the threads: the current device is the caller's.
    made = [Build(query) for query, _ in _queries(builds, overrides)]
    futures = [build.future for build in made]
    try:
        Batch(made).start()
    except BaseException:  # interrupted: the caller will not get the futures
        for future in futures:
            future.cancel()
        raise
    return futures


@public
def compile_many(
    builds: Iterable[Any],
    *,
    progress: bool | Callable[[int, int, ObjectCode | RtcompileError], Any] | None = None,
    executor: Any = None,
    errors: str = "raise",
    fallback: Fallback | None = None,
    pch: bool | None = None,
    timeout: float | None = None,
    memory_limit: int | str | None = None,
) -> list[ObjectCode]:
    """Compile many modules in parallel, as many at once as the machine has cores and memory for.

    The results are cached: a `RawModule` of the batch, or a later one with the same source, finds them.

    Parameters
    ----------
    builds : iterable of CompileRequest, RawModule or RawKernel
        What to compile. ``request.replace(options=…)`` makes variants of one template.
    progress : bool or callable, optional
        None shows a line if stderr is a terminal or a notebook, True also prints lines elsewhere, False shows
        nothing. A callable is called with the number done, the total, and an `ObjectCode` or an error.
    executor : concurrent.futures.Executor or dask.distributed.Client, optional
        Runs the builds elsewhere: on the workers of mpi4py's ``MPIPoolExecutor``, of Dask, or of any other
        executor. Each compiles with its own settings, for the device of the caller, or for its own where
        the caller has none. What the requests name (``-I`` directories, files to link) has to be there as
        well.
    errors : {"raise", "return"}
        Whether to raise one `BatchError` after all builds, or to return errors in the list.
    fallback, pch, timeout, memory_limit
        As in `rtcompile.compile`, for every build.

    Returns
    -------
    list of ObjectCode
        In the order of `builds`.

    Raises
    ------
    BatchError
        Some builds failed: ``.errors`` maps positions to errors, ``.results`` has the other results.
    InvalidRequest
        An item has another type.

    Examples
    --------
    >>> template = rtcompile.CompileRequest("__global__ void k(int* p) { *p = N; }", arch="sm_80")
    >>> variants = [template.replace(options=(f"-DN={n}",)) for n in range(3)]
    >>> [code.kind for code in rtcompile.compile_many(variants, progress=False)]
    ['cubin', 'cubin', 'cubin']
    """
    one_of("errors", errors, ("raise", "return"))
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise InvalidRequest(
            f"progress must be True, False, None or a function, not {shown(progress)}"
        )
    builds = items("builds", builds, _BUILDS)
    overrides = {"fallback": fallback, "pch": pch, "timeout": timeout, "memory_limit": memory_limit}
    if executor is None and not progress:
        codes = found(builds, overrides)
        if codes is not None:
            try:
                for item, code in zip(builds, codes, strict=True):
                    _check(item, code)
                return codes
            except RtcompileError:
                pass  # a kernel is missing: its future raises this too
    import rtcompile

    showing: Any = rtcompile._load("shown_progress")
    futures = _with_checks(
        builds,
        submit(builds, overrides) if executor is None else _submit_to(executor, builds, overrides),
    )
    try:
        with showing(progress, len(futures)) as advance:
            for future in completed(futures):
                advance(_outcome(future))
    except BaseException:
        for future in futures:
            future.cancel()
        raise
    outcomes: list[Any] = list(map(_outcome, futures))
    failed = {i: o for i, o in enumerate(outcomes) if not isinstance(o, ObjectCode)}
    if failed and errors == "raise":
        results = [None if i in failed else o for i, o in enumerate(outcomes)]
        raise BatchError(failed, results, {i: _label(builds[i]) for i in failed})
    return outcomes


def completed(futures: Iterable[Future[ObjectCode]]) -> Iterator[Future[ObjectCode]]:
    """Yield futures as they are done, like `concurrent.futures.as_completed`, but react to Ctrl-C."""
    # Each wait is short, because Python handles a Ctrl-C that arrives just before a wait only after it.
    from concurrent.futures import TimeoutError, as_completed
    from contextlib import suppress

    from rtcompile.workers import pool

    pending = {*futures}
    while pending:
        with suppress(TimeoutError):
            for future in as_completed(pending, pool.MAX_WAIT_SECONDS):
                pending.remove(future)
                yield future


def request_of(item: Any) -> CompileRequest | None:
    """Return the request of a batch's item; None for other types."""
    request = item
    if not isinstance(item, CompileRequest):
        request = getattr(getattr(item, "_build", None), "request", None)
    return request if isinstance(request, CompileRequest) else None


def _label(item: Any) -> str:
    """Return a build's name in messages about a batch."""
    request = request_of(item)
    assert request is not None
    names = request.name_expressions
    several = f", … {len(names)} names" if len(names) > 1 else ""
    named = f" ({names[0]}{several})" if names else ""
    return f"{request.name}{named}{f' for {request.arch}' if request.arch else ''}"


def _outcome(future: Future[ObjectCode]) -> ObjectCode | RtcompileError:
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, RtcompileError):
        return error
    raise error


def _with_checks(builds: Sequence[Any], futures: Sequence[BuildFuture]) -> list[BuildFuture]:
    for item, future in zip(builds, futures, strict=True):
        # A partial would import functools, which takes 5 ms of a process that has only hits.
        future.check = lambda code, item=item: _check(item, code)
    return [*futures]


def _check(item: Any, code: ObjectCode) -> None:
    """Raise if the code lacks the kernel that a `RawKernel` is for; warn if other code has no kernel at all."""
    if not isinstance(item, CompileRequest):
        # The items of `rtcompile bundle` have no `_check`: that command checks the kernels itself.
        getattr(item, "_check", lambda _: None)(code)
    else:
        pipeline.check_kernels(item, code)


def found(builds: Sequence[Any], overrides: Mapping[str, Any]) -> list[ObjectCode] | None:
    """Return the codes of a batch if all are cached, without further imports."""
    every = []
    for request, settings, _ in requests_in(builds, overrides):
        query = query_of(request, settings)
        query.only_cached = True
        code = pipeline.search(query, "nothing")
        if code is None:
            return None
        every.append((request, code, settings.log))
    for request, code, level in every:
        if code.build.hit != "bundle":
            count(environments.current().folder, hits=1)
        lookup.report(request, code, level)
    return [code for _, code, _ in every]


def requests_in(
    builds: Sequence[Any], overrides: Mapping[str, Any]
) -> Iterator[tuple[CompileRequest, Settings, Mapping[str, Any]]]:
    """Yield each item's request, settings and overrides; an item's own take precedence over the batch's."""
    environment = environments.current().settings
    common = environment.override(**overrides)
    for index, item in enumerate(builds):
        request = request_of(item)
        if request is None:
            raise InvalidRequest(f"builds[{index}] is {shown(item)}; a batch is of {_BUILDS}")
        if request is item:
            refuse_contradiction(request.backend, overrides.get("fallback"))
            yield request, common, overrides
            continue
        own = {name: item._build.arguments[name] for name in overrides}
        given = {name: overrides[name] if own[name] is None else own[name] for name in own}
        refuse_contradiction(request.backend, given.get("fallback"))
        yield request, environment.override(**given), given


def _queries(
    builds: Sequence[Any], overrides: Mapping[str, Any], *, elsewhere: bool = False
) -> list[tuple[Query, Mapping[str, Any]]]:
    """Return the queries and overrides of a batch; `elsewhere`, another machine's device may set the architecture."""
    from contextlib import suppress

    from rtcompile.build import planned
    from rtcompile.errors import ToolkitNotFound, UnsupportedArch

    made = []
    for request, settings, given in requests_in(builds, overrides):
        query = query_of(request, settings)
        if request.arch is None and (elsewhere or query.capability is None):
            # A bundle may have the code.
            with suppress(ToolkitNotFound, *(UnsupportedArch,) * elsewhere):
                choice = planned.plan(request.replace(link=()), settings).choice
                query.request = request.replace(arch=choice.arch, target=choice.target)
        made.append((query, given))
    return made
