"""Finds the code of a request without planning its build: in memory, in bundles, in the cache's index.

Every way to ask for code goes through `find`, however its options are spelled. The levels are asked
in order, and what bundles or the index give is kept in memory. Each level checks by `FileSet` that no
file has changed. If no level has the code, its build is planned (`building.pipeline`), and `keep` writes
an index entry for the result: the name of an object of the cache, and the files that it depends on.
"""

from __future__ import annotations

import sys
import time

from rtcompile.cache import files, objects
from rtcompile.cache.folder import count_hit
from rtcompile.core.object_code import BuildInfo, ObjectCode
from rtcompile.lookup import environment as environments
from rtcompile.lookup.device import loaded
from rtcompile.lookup.fileset import PACKED_FIELDS, FileSet
from rtcompile.lookup.query import INDEX, Found, Memory, Query

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rtcompile.core.request import CompileRequest
    from rtcompile.errors import RtcompileError

    Listener = Callable[[CompileRequest, ObjectCode | RtcompileError], object]

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
        from rtcompile.watching import logs

        _tell(logs.announce, request, outcome, level)


def _tell(listen: Callable[..., object], *what: object) -> None:
    try:
        listen(*what)
    except Exception as error:
        from rtcompile.watching import logs

        logs.warn_once(error)


def find(query: Query, *, counts: bool = True) -> ObjectCode | None:
    """Return the code of a request; None where its build has to be planned.

    An object of the cache `counts` as a hit in its statistics.
    """
    started = time.perf_counter()
    for where, level in _LEVELS:
        found = level(query)
        if found is not None:
            if where != "memory":
                _memory_of(query).keep(query.identity, found)
            if counts and found.obj.build.hit != "bundle":
                count_hit(query.environment.folder)
            return _as_hit(found, where, (time.perf_counter() - started) * 1e3)
    return None


def _memory_of(query: Query) -> Memory:
    """Return what was found in the query's environment."""
    memory = query.environment.memory
    if memory is None:
        memory = query.environment.memory = Memory()
    return memory


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
    memory = query.environment.memory
    found = None if memory is None else memory.find(query.identity)
    if found is None or not (found.files.is_empty or found.files.unchanged(query.recent)):
        return None
    if found.obj.build.hit == "bundle":
        return found if _uses_bundles(query) else None
    return found if query.environment.signature() else None


def _in_bundles(query: Query) -> Found | None:
    if not _uses_bundles(query):
        return None
    from rtcompile.bundles import index

    return index.find(query)


def _uses_bundles(query: Query) -> bool:
    bundles = loaded("rtcompile.bundles")
    if bundles is None:
        return bool(query.settings.bundles)
    return bool(bundles.are_in_use(query.settings.bundles))


def _in_index(query: Query) -> Found | None:
    if not query.settings.cache_on_disk:
        return None
    name = query.name()
    folder = query.environment.folder
    data = folder.read(INDEX, name) if name else None
    fields = None if data is None else files.unseal(SEAL, name, data)
    if fields is None or len(fields) != 2 + PACKED_FIELDS:
        query.failed = fields == []
        return None
    try:
        read = FileSet.unpacked(fields[2:])
    except ValueError:
        return None
    if not read.unchanged(query.recent):
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


_LEVELS: tuple[tuple[str, Callable[[Query], Found | None]], ...] = (
    ("memory", _in_memory),
    ("bundle", _in_bundles),
    ("disk", _in_index),
)


def keep(
    query: Query,
    obj: ObjectCode,
    read: FileSet,
    object_key: str,
    provided: Sequence[str],
    publish: Callable[[str, str, bytes], object],
) -> None:
    """Keep a build that was planned, in memory and as an entry of the index, written by `publish`."""
    if query.environment is not environments.current():
        return  # a variable was changed during the build
    packed = read.packed(tuple([path.rstrip("/") + "/" for path in provided]))
    name = query.name()
    if not name:
        return
    _memory_of(query).keep(query.identity, Found(obj, read))
    notes = "\0".join(obj.build.notes).encode("utf-8", "surrogateescape")
    publish(INDEX, name, files.seal(SEAL, name, [object_key.encode(), notes, *packed]))


def note_failure(query: Query, publish: Callable[[str, str, bytes], object]) -> None:
    """Have the next process look for the failure of a build before it starts a compiler."""
    name = query.name()
    if name and query.environment is environments.current():
        publish(INDEX, name, files.seal(SEAL, name, []))
