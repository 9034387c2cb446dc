"""The cache on this machine: what is in it, and how to empty it.

Its functions raise `InvalidRequest` if another user could have written to the cache's folder, or if an environment
variable is invalid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rtcompile.build import pipeline
from rtcompile.errors import InvalidRequest, JitDisabled, public, shown
from rtcompile.files.sealed import UntrustedError
from rtcompile.lookup import environment as environments
from rtcompile.lookup.find import query_of
from rtcompile.request.request import CompileRequest
from rtcompile.settings import Settings
from rtcompile.settings import size as parsed_size
from rtcompile.store.folder import Folder
from rtcompile.store.store import Store

if TYPE_CHECKING:
    from rtcompile.build.plan import Plan

__all__ = ["clear", "info", "prune", "why"]


def __dir__() -> list[str]:
    return __all__


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheInfo:
    """Statistics of the cache.

    Attributes
    ----------
    directory : str
        The cache's folder.
    on_disk : bool
        Whether builds are stored there; False with ``CUPY_CACHE_IN_MEMORY=1``.
    entries : int
        The number of stored builds.
    size, limit : int
        The bytes that the cache takes, and the most that it may take.
    hits, misses, failures, fetched : int
        Builds found, builds compiled, failed builds in the cache, and builds fetched from shared stores. All but the
        failures are counts since the cache was created or cleared.
    precompiled_headers, precompiled_bytes : int
        The number of precompiled headers, and their bytes.
    """

    directory: str
    on_disk: bool
    entries: int
    size: int
    limit: int
    hits: int
    misses: int
    failures: int
    fetched: int
    precompiled_headers: int
    precompiled_bytes: int


@public
def info() -> CacheInfo:
    """Return statistics of the cache.

    Returns
    -------
    CacheInfo
        Folder, entries, bytes and how often builds were found.

    Examples
    --------
    >>> rtcompile.cache.info().limit >= 0
    True
    """
    settings, store = opened()
    usage = store.usage()
    listing = Folder(settings.cache_dir, writable=False).listing("pch")
    precompiled = [status.st_size for name, status in listing if name.endswith(".pch")]
    counted = ("size", "hits", "misses", "failures", "fetched")
    return CacheInfo(
        directory=settings.cache_dir,
        on_disk=settings.cache_on_disk,
        entries=sum(1 for _ in store.entries()),
        limit=settings.cache_size,
        precompiled_headers=len(precompiled),
        precompiled_bytes=sum(precompiled),
        **{name: getattr(usage, name, 0) for name in counted},
    )


@public
def clear() -> CacheInfo:
    """Remove all builds, in memory and on disk, except reproducers of compiler crashes.

    Returns
    -------
    CacheInfo
        The statistics from before.

    Examples
    --------
    >>> rtcompile.cache.clear().entries
    0
    """
    before = info()
    opened()[1].clear()
    environments.current().memory = None
    return before


@public
def prune(size: int | str | None = None) -> int:
    """Remove the least recently used builds until the rest fits.

    Parameters
    ----------
    size : int or str, optional
        The bytes that may stay, or ``"512M"``; ``RTCOMPILE_CACHE_SIZE`` sets the default.

    Returns
    -------
    int
        The freed bytes.

    Examples
    --------
    >>> rtcompile.cache.prune("1G")
    0
    """
    return opened()[1].prune(None if size is None else parsed_size("size", str(size)))


@public
def why(request: str | CompileRequest, **arguments: Any) -> str:
    """Return in one line why a build is not in the cache.

    Parameters
    ----------
    request : str or CompileRequest
        A source, or a whole request.
    **arguments
        Arguments of `CompileRequest` that belong to a source.

    Returns
    -------
    str
        ``"header /x/foo.h changed"``, for example; empty if the build is in the cache.

    Examples
    --------
    >>> rtcompile.cache.why("__global__ void f() {}", arch="sm_80") != ""
    True
    """
    if isinstance(request, str):
        request = CompileRequest(request, **arguments)
    elif not isinstance(request, CompileRequest) or arguments:
        raise InvalidRequest(
            f"why takes a source and compile's arguments, or a CompileRequest, not {shown(request)}"
        )
    return why_of(request)[0]


def why_of(request: CompileRequest) -> tuple[str, Plan | None]:
    """Return the result of `why`, and the plan; None if a source in ``link=`` is not in the cache."""
    settings, _ = opened()
    query = query_of(request, settings)
    query.only_cached = True
    try:
        found = pipeline.search(query, "plan", keeps=False)
    except JitDisabled:
        return "a linked source is not in the cache, and this check compiles nothing", None
    return ("" if found is not None else query.missing.why()), query.plan


def opened() -> tuple[Settings, Store]:
    """Return the settings and the cache; raise `InvalidRequest` if the folder is not trusted."""
    settings = Settings.from_environ()
    try:
        Folder(settings.cache_dir).check()
    except UntrustedError as error:
        step = "set RTCOMPILE_CACHE_DIR to a folder of your own"
        raise InvalidRequest(f"the cache is not used: {error}; {step}") from None
    # RTCOMPILE_JIT=0 keeps programs from writing to the cache, but not callers of these functions.
    settings = settings._replace(jit=True)
    return settings, Store.open(settings)
