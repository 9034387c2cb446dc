"""Finds the code of a request in one level after another; what a level finds, those above it keep.

Every look-up goes through `find`, however the options are spelled. `LEVELS` are those that need no
plan: memory, bundles where any are used, and the cache's index, whose entries name an object of the
cache and the files that it depends on. `build.planned.LEVELS` need a plan: bundles, manifests, and,
if nothing may be compiled, shared stores. Otherwise shared stores are asked with the build's lock held
(`miss.compile_once`). Then one process of a machine fetches, and one machine has the lease to build.
"""

from __future__ import annotations

import sys
import time

from rtcompile.files import sealed
from rtcompile.files.fileset import PACKED_FIELDS, FileSet
from rtcompile.lookup import environment as environments
from rtcompile.lookup.query import INDEX, Found, Memory, Query
from rtcompile.request.object_code import BuildInfo, ObjectCode
from rtcompile.store import objects
from rtcompile.store.folder import count_hit

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rtcompile.errors import RtcompileError
    from rtcompile.request.request import CompileRequest

    Listener = Callable[[CompileRequest, ObjectCode | RtcompileError], object]
    # A level: what `BuildInfo.hit` says of its codes ("" where they say so themselves), how it finds
    # code, and how it keeps what a lower level found, or a compiler made.
    Find = Callable[[Query], Found | None]
    Keep = Callable[[Query, Found], None]
    Level = tuple[str, Find, Keep | None]

SEAL = "index entry"  # the kind of the files in it


# Functions that are called with each request and its result, in the thread of the request.
listeners: list[Listener] = []


def report(
    request: CompileRequest, outcome: ObjectCode | RtcompileError, level: str | None = None
) -> None:
    """Call the listeners with a request's result, and log it; `level` also shows it on stderr.

    The result does not depend on whether one of them raises.
    """
    for listen in tuple(listeners):
        _tell(listen, request, outcome)
    # If `logging` is not imported, no handler can exist, and a hit should not import it.
    if isinstance(outcome, ObjectCode) and (level is not None or "logging" in sys.modules):
        from rtcompile import logs

        _tell(logs.announce, request, outcome, level)


def _tell(listen: Callable[..., object], *what: object) -> None:
    try:
        listen(*what)
    except Exception as error:  # noqa: BLE001  # a listener may raise anything; builds go on
        from rtcompile import logs

        logs.warn_once(error)


def find(
    query: Query,
    levels: Sequence[Level] | None = None,
    above: Sequence[Level] = (),
    *,
    counts: bool = True,
) -> ObjectCode | None:
    """Return the code of a request from one of the levels (default: `LEVELS`); None if none has it.

    An object of the cache `counts` as a hit in its statistics.
    """
    started = time.perf_counter()
    if levels is None:
        if query.identity is None:
            return None
        levels = LEVELS
    for at, (where, find_in, _) in enumerate(levels):
        found = find_in(query)
        if found is not None:
            if at or above:
                keep(query, found, (*above, *levels[:at]))
            if not where:
                return found.obj
            if counts and found.obj.build.hit != "bundle":
                count_hit(query.environment.folder)
            return _as_hit(found, where, (time.perf_counter() - started) * 1e3)
    return None


def keep(query: Query, found: Found, levels: Sequence[Level]) -> None:
    """Keep code in levels, the lowest first, unless it depends on more than its files."""
    if not found.files.uncacheable:
        for _, _, keep_in in reversed(levels):
            if keep_in is not None:
                keep_in(query, found)


def _as_hit(found: Found, where: str, milliseconds: float) -> ObjectCode:
    obj = found.obj
    build = obj.build
    # The reason for using NVCC still holds on a hit; the reason for the miss does not.
    why = build.why if build.backend == "nvcc" else ""
    info = BuildInfo(
        build.backend,
        build.log,
        found.files,
        milliseconds,
        where,
        why,
        build.compiler,
        build.notes,
        build.compiled_in,
    )
    return ObjectCode(obj.code, obj.kind, obj.arch, obj.lowered_names, info)


def _in_memory(query: Query) -> Found | None:
    memory, identity = query.environment.memory, query.identity
    found = None if memory is None or identity is None else memory.find(identity)
    if found is None or not (found.files.is_empty or found.files.is_unchanged(query.recent)):
        return None
    # What a bundle has is valid whatever toolchain there is.
    return found if found.obj.build.hit == "bundle" or query.environment.signature() else None


def _keep_in_memory(query: Query, found: Found) -> None:
    if query.recent:
        return  # CuPy keeps the loaded module, and asks for it once.
    if query.environment.memory is None:
        query.environment.memory = Memory()
    if query.identity is not None:
        query.environment.memory.keep(query.identity, found)


def _in_index(query: Query) -> Found | None:
    if not query.settings.cache_on_disk:
        return None
    name = query.name()
    folder = query.environment.folder
    data = folder.read(INDEX, name) if name else None
    fields = None if data is None else sealed.unseal(SEAL, name, data)
    if fields is None or len(fields) != 2 + PACKED_FIELDS:
        query.failed = fields == []
        return None
    try:
        read = FileSet.unpacked(fields[2:])
    except ValueError:
        return None
    if not read.is_unchanged(query.recent):
        return None
    key = fields[0].decode()
    data = folder.read("objects", key)
    decoded = None if data is None else objects.decode(key, data)
    if decoded is None:
        return None
    obj = decoded[1]
    if fields[1]:
        notes = tuple(fields[1].decode("utf-8", "surrogateescape").split("\0"))
        object.__setattr__(obj.build, "notes", notes)
    return Found(obj, read)


def _keep_in_index(query: Query, found: Found) -> None:
    """Write an index entry, if a planned build's object is in the cache."""
    name = query.name()
    if name and found.object_key and query.plan is not None:
        provided = [each.path.rstrip("/") + "/" for each in query.plan.toolchain.search]
        packed = found.files.packed(tuple(provided))
        notes = "\0".join(found.obj.build.notes).encode("utf-8", "surrogateescape")
        _publish(query, name, [found.object_key.encode(), notes, *packed])


def note_failure(query: Query) -> None:
    """Have the next process look for the failure of a build before it starts a compiler."""
    name = query.name()
    if name and query.environment is environments.current():
        _publish(query, name, [])


def _publish(query: Query, name: str, fields: list[bytes]) -> None:
    from rtcompile.store.store import Store

    Store.open(query.settings).publish(INDEX, name, sealed.seal(SEAL, name, fields))


# Bundles become the second level when the first is used.
LEVELS: tuple[Level, ...] = (
    ("memory", _in_memory, _keep_in_memory),
    ("disk", _in_index, _keep_in_index),
)
