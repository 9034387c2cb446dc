"""One look-up, a `Query`: a request in its environment, for its device. And two of the levels: memory and the index.

An index entry names an object of the cache and the files that it depends on. `build.pipeline` lists all levels.
"""

from __future__ import annotations

import os
import sys
import time

from rtcompile.errors import DriverError, InvalidRequest, UnsupportedArch
from rtcompile.files import sealed
from rtcompile.files.sealed import content_digest
from rtcompile.lookup import environment as environments
from rtcompile.lookup.environment import Environment, versioned_digest
from rtcompile.request.object_code import (
    INDEX,
    Found,
    ObjectCode,
    Record,
    decode,
    decode_records,
    encode_records,
)
from rtcompile.request.request import CompileRequest, is_source, names_architecture
from rtcompile.request.values import absolute, working_directory
from rtcompile.settings import announce, warn_once
from rtcompile.store.folder import Memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from rtcompile.errors import RtcompileError
    from rtcompile.settings import Settings

    Listener = Callable[[CompileRequest, ObjectCode | RtcompileError], object]


# --- The compute capability of the current device ------------------------------------------------

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*, the same in cudaDevAttr*
_known: dict[int, tuple[int, int]] = {}


def loaded(name: str) -> Any:
    """Return a module that is already imported; None while another thread is still importing it."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def compute_capability() -> tuple[int, int]:
    """Return (major, minor) of the current device, from CuPy if it is loaded, else from the driver."""
    cupy = loaded("cupy")
    runtime = None if cupy is None else cupy.cuda.runtime
    if runtime is None:
        from rtcompile.lookup import driver

        try:
            return driver.capability_of_current()
        except driver.LACKING as error:
            raise no_device(getattr(error, "strerror", None) or str(error)) from None
    try:
        device = runtime.getDevice()
        if device not in _known:
            _known[device] = (
                runtime.deviceGetAttribute(_MAJOR, device),
                runtime.deviceGetAttribute(_MINOR, device),
            )
    except runtime.CUDARuntimeError as error:
        raise no_device(str(error)) from None
    return _known[device]


_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


def no_device(evidence: str, loading: bool = False) -> UnsupportedArch | DriverError:
    """Return the error for a missing device, when compiling for it or loading code on it."""
    if loading:
        return DriverError(
            f"no CUDA device to load and run the code on ({evidence}); `.object_code` has the code for "
            "a named architecture, and needs no device",
            _NO_DEVICE,
        )
    return UnsupportedArch(
        f"no CUDA device to compile for ({evidence}); "
        "pass arch='sm_90a' (or another) to compile without one"
    )


# --- `Query` --------------------------------------------------------------------------------------


class Query:
    """One look-up: a request in an environment, for a device.

    `identity` is everything that can change the result, besides files and the environment; None if it needs
    planning. Levels that need a plan make it at first use, as `plan`. `capability` is None if the request names its
    architecture, or there is no device. With `recent`, the toolkit's headers that were found unchanged within the
    last second count as unchanged: CuPy's own kernels follow one another and share a hundred headers. `failed` is
    True if the last build failed according to the index; the record of its plan then has its error. Listeners are not
    called for a `quiet` query, which the program has not requested yet. One for `only_cached` code compiles nothing,
    and counts no hit. `begun` (performance counter) is when the look-up began.

    The other attributes are set by levels that need a plan, for the next ones.
    """

    recent = failed = quiet = only_cached = False
    waits = True  # whether to wait for another thread, process or node that builds the same code
    plan: Any = None  # a `build.plan.Plan`
    store: Any = None  # the local cache, a `store.store.Store`
    seconds: float | None = None  # what the wait for the lock left of the time limit
    why: Any = None  # returns why the code is a miss, if it is compiled
    missing: Any = None  # a `store.store.Missing`, which has the records that were found
    failure: Record | None = None  # of NVRTC, after which NVCC builds the code
    sharing: Any = None  # the build in the shared stores: an `extras.cluster.pages.Sharing`

    def __init__(
        self,
        request: CompileRequest,
        settings: Settings,
        environment: Environment,
        capability: tuple[int, int] | None,
        links: tuple[object, ...] | None,
    ) -> None:
        self.request = request
        self.settings = settings
        self.environment = environment
        self.capability = capability
        self.begun = time.perf_counter()
        self.identity: tuple[Any, ...] | None = None
        if links is None:
            return
        try:
            directory = working_directory("") if request.depends_on_directory else ""
        except InvalidRequest:  # the working directory was removed
            return
        arch = request.arch
        ignores_arch = request.may_pass_over_arch and arch is None and names_architecture(request)
        self.identity = (
            request.source,
            request.options,
            request.name_expressions,
            request.name,
            request.backend,
            request.target,
            request.headers,
            links,
            None if arch is None else (arch.major, arch.minor, arch.suffix),
            capability,
            directory,
            settings.fallback,
            request.allow_fixups,
            ignores_arch,
            settings.debug,
            settings.ptx,
        )

    def name(self) -> str:
        """Return the name of the index entry; "" without an identity or a known toolchain."""
        signature = self.environment.signature() if self.identity is not None else ""
        if not signature:
            return ""
        assert self.identity is not None
        # The repr of nested lists of texts, numbers and None is unique.
        texts = signature, self.request.source_digest, repr(self.identity[1:])
        return versioned_digest(INDEX, [self.environment.key, *texts])


def query_of(
    request: CompileRequest, settings: Settings, capability: tuple[int, int] | None = None
) -> Query:
    """Return a request's query; it has no identity for another cache, or if a link input or the directory is gone."""
    links = links_of(request.link)
    environment = environments.current()
    if environment.settings.cache_dir != settings.cache_dir:
        links = None
    if request.arch is not None:
        capability = None
    elif capability is None:
        try:
            capability = compute_capability()
        except UnsupportedArch:
            pass  # planning raises the error, unless the options name an architecture
    return Query(request, settings, environment, capability, links)


def links_of(items: Iterable[object]) -> tuple[Any, ...] | None:
    """Return the identity of the elements of ``link=``; None if one is invalid or cannot be read.

    The identity of an object, or of a file, ends with its digest.
    """
    found: list[Any] = []
    for item in items:
        if isinstance(item, ObjectCode):
            found.append((item.kind, content_digest(item.code)))
        elif isinstance(item, tuple) and hasattr(item, "data"):  # a `LinkInput`
            kind, name, data = item
            found.append((kind, name, content_digest(data)))
        elif is_source(item):
            found.append(item)
        elif isinstance(item, CompileRequest) and not item.link:
            directory = working_directory("") if item.depends_on_directory else ""
            found.append((item._values(), directory))
        elif isinstance(item, (str, os.PathLike)):
            try:
                path = absolute(os.fsdecode(item))
                found.append((path, content_digest(sealed.read_given(path))))
            except (OSError, ValueError, TypeError, InvalidRequest):
                return None  # planning raises the error
        else:
            return None
    return tuple(found)


# --- The levels ---------------------------------------------------------------------------------------

builds_ahead: Any = None  # a `build.ahead.Ahead`, once a constructed kernel lacks its code

# Listeners: functions that are called with each request and its result, in the request's thread.
listeners: list[Listener] = []


def report(
    request: CompileRequest, outcome: ObjectCode | RtcompileError, level: str | None = None
) -> None:
    """Call all listeners with a request's result, and log it at `level`."""
    for listen in tuple(listeners):
        _tell(listen, request, outcome)
    # If `logging` is not imported, no handler can exist, and a hit should not import it.
    if isinstance(outcome, ObjectCode) and (level is not None or "logging" in sys.modules):
        _tell(announce, request, outcome, level)


def _tell(listen: Callable[..., object], *what: object) -> None:
    try:
        listen(*what)
    except Exception as error:  # noqa: BLE001  # a listener may raise anything; builds go on
        warn_once(error)


def keep(query: Query, found: Found, *, is_planned: bool) -> None:
    """Keep code in memory, and in the index if it `is_planned`, unless it depends on more than its files."""
    if not found.record.files.uncacheable:
        if is_planned:
            keep_in_index(query, found)
        keep_in_memory(query, found)


def in_memory(query: Query) -> Found | None:
    """Return the code that this process found or built before, if its files are unchanged."""
    memory, identity = query.environment.memory, query.identity
    found = None if memory is None or identity is None else memory.find(identity)
    if found is None or not found.record.files.is_unchanged(query.recent):
        return None
    # Code from a bundle is valid for every toolchain.
    return found if found.obj.build.hit == "bundle" or query.environment.signature() else None


def keep_in_memory(query: Query, found: Found) -> None:
    """Keep code in memory."""
    if query.recent:
        return  # CuPy keeps the loaded module and requests it only once.
    if query.environment.memory is None:
        query.environment.memory = Memory()
    if query.identity is not None:
        code, texts = found.obj.code, len(query.request.source) + len(found.obj.build.log)
        query.environment.memory.keep(query.identity, found, len(code) + texts)


def in_index(query: Query) -> Found | None:
    """Return the code that the index entry of a query names, if its files are unchanged."""
    if not query.settings.cache_on_disk:
        return None
    name = query.name()
    folder = query.environment.folder
    found = folder.decoded(INDEX, name, decode_records) if name else None
    if not found:
        query.failed = found is not None
        return None
    record = found[0]
    if not record.files.is_unchanged(query.recent):
        return None
    obj = folder.decoded("objects", record.object_key, decode)
    return None if obj is None else Found(obj, record)


def keep_in_index(query: Query, found: Found) -> None:
    """Write the index entry of a planned build, if its object is in the cache."""
    name = query.name() if found.record.object_key else ""
    if name:
        provided = [each.path.rstrip("/") + "/" for each in query.plan.toolchain.search]
        record = found.record._replace(notes=found.obj.build.notes)
        _publish(query, name, encode_records(name, [record], provided=tuple(provided)))


def note_failure(query: Query) -> None:
    """Write an index entry that makes the next process look for the failure's record before it starts a compiler."""
    name = query.name()
    if name and query.environment is environments.current():
        _publish(query, name, encode_records(name, []))


def _publish(query: Query, name: str, data: bytes) -> None:
    from rtcompile.store.store import Store

    Store.open(query.settings).publish(INDEX, name, data)
