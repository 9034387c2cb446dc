"""Precompiled headers on disk: their records, the check of their files, and the process that makes one.

The maker outlives the program whose build needs the header. It has two descriptors (its order, and a lock that it
holds until it ends), its own session, a low priority, no terminal and no output. The compiler runs in the maker's
worker, which limits its time and memory, removes its files, and ends with it.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from rtcompile._version import __version__
from rtcompile.compilers import observed
from rtcompile.files import clocks, sealed
from rtcompile.files.fileset import PACKED_FIELDS, FileSet, joined, texts_in
from rtcompile.files.headers import SearchDir
from rtcompile.files.sealed import stat_of
from rtcompile.request import units
from rtcompile.request.units import Limits
from rtcompile.store import inventory, manifests
from rtcompile.store.folder import Folder
from rtcompile.workers import pool, process, protocol, zygote

_UNKNOWN = float("inf")
_COUNTS = struct.Struct("<3qd")
_DIGEST_BYTES = 16
_OWN_FIELDS = 4

_NO_DEPENDENCIES = FileSet()


class Record(NamedTuple):
    """The record of a prefix; it has an image if there is a precompiled header."""

    trace: tuple[str, ...] = ()
    image: bytes = b""
    dependencies: FileSet = _NO_DEPENDENCIES
    builds: int = 0  # without a precompiled header, since one of the files changed
    makings: int = 0  # attempts to make one
    seconds: float = _UNKNOWN  # the shortest time in which a build read its source
    repeats: int = 0  # builds of a program that had been built before, as during editing
    programs: tuple[bytes, ...] = ()  # digests of the last programs

    @classmethod
    def read(cls, path: str) -> Record | None:
        """Return the record at a path; None if it is missing or damaged."""
        try:
            fields = sealed.unseal("pch", os.path.basename(path), sealed.read_path(path))
        except OSError:
            return None
        if fields is None or len(fields) != _OWN_FIELDS + PACKED_FIELDS:
            return None
        trace, image, counts, programs, *files = fields
        builds, makings, repeats, seconds = _COUNTS.unpack(counts)
        return cls(
            tuple(texts_in(trace)),
            image,
            FileSet.unpacked(files),
            builds,
            makings,
            seconds,
            repeats,
            tuple(
                [programs[at : at + _DIGEST_BYTES] for at in range(0, len(programs), _DIGEST_BYTES)]
            ),
        )

    def write(self, path: str) -> bool:
        """Write the record; False if the folder is not writable."""
        fields = [
            joined(self.trace),
            self.image,
            _COUNTS.pack(self.builds, self.makings, self.repeats, self.seconds),
            b"".join(self.programs),
            *self.dependencies.packed(()),
        ]
        try:
            sealed.publish(path, sealed.seal("pch", os.path.basename(path), fields), durable=False)
        except OSError:
            return False
        return True


def image(path: str) -> bytes:
    """Return a file's identity: its stat, since hashing 290 MB takes half a second."""
    try:
        status = os.lstat(path)
    except OSError:
        return b""
    return struct.pack("<4q", *stat_of(status)) if stat.S_ISREG(status.st_mode) else b""


def changed_since(paths: Sequence[str], record: str) -> bool:
    """Return whether a file is newer than the record, since headers that are being edited are not precompiled."""
    try:
        then = os.stat(record).st_mtime_ns
        return any(os.stat(path).st_mtime_ns >= then for path in paths)
    except OSError:
        return True


def has_private_folder(cache_dir: str) -> bool:
    """Return whether the folder for precompiled headers, which the compiler trusts, is private; make it if needed."""
    try:
        os.makedirs(cache_dir, 0o700, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(os.path.join(cache_dir, "pch"), 0o700)
        os.close(Folder(cache_dir).open("pch"))
    except OSError:
        return False
    return not sealed.can_be_swapped(cache_dir)


# --- The maker: started by the build that needs the header -----------------------------------------

# At nice 15 a maker gets a thirtieth of a busy core, and a build on that core takes a fiftieth longer; at 12, up to
# a tenth longer. With SCHED_IDLE no header would ever be finished on a busy core. Linux derives the disk priority
# from it.
NICE = 15
NICE_WHEN_AWAITED = 5

_ORDER, _LOCK = 0, 3  # descriptors
_SECONDS = 600  # a busy machine may take that long
_CPU_SECONDS = 120  # CuTe takes 3
_BYTES = 4 << 30  # CuTe takes 0.6
# A header that saves less than this is not kept.
_LEAST_SAVED = 0.02


def start(order: dict[str, Any], lock: int) -> int:
    """Start a maker and return its process id; the caller keeps its descriptor of the lock."""
    command = process.bare("rtcompile.compilers.pch_maker:main")
    environ = units.worker_environ(os.environ)
    if os.environ.get("TMPDIR"):
        environ["TMPDIR"] = os.path.realpath(os.environ["TMPDIR"])
    given = {**order, "version": __version__, "seconds": _SECONDS, "bytes": _BYTES}
    packed = protocol.pack(given)
    try:
        pid = process.spawn(command, environ, {_ORDER: packed, _LOCK: lock})
    finally:
        os.close(packed)
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, max(order["nice"], os.nice(0)))
    return pid


# --- in the maker's process ------------------------------------------------------------------


def main() -> None:
    """Make the header that the order names; end silently on any error."""
    os.setsid()
    zygote.keep_priority()
    order = protocol.unpack(os.dup(_ORDER))
    try:
        if order["version"] == __version__:  # otherwise rtcompile was upgraded
            _detach(order["seconds"])
            _make(order)
    except Exception:  # noqa: BLE001  # nobody reads it: the next build finds no header and does without
        sys.exit(1)
    finally:
        sealed.discard(order["lock"])  # before the lock ends, with this process


def _detach(seconds: int) -> None:
    """Detach from the caller, and set limits for this process."""
    import resource
    import signal

    os.dup2(1, _ORDER)  # /dev/null
    os.set_inheritable(_LOCK, False)
    try:
        last = max(int(name) for name in os.listdir("/proc/self/fd"))
    except OSError:  # no /proc here
        last = 1 << 16
    os.closerange(_LOCK + 1, last + 1)
    os.chdir("/")
    os.umask(0o077)
    # The worker limits the compiler; these limits are a second line of defence.
    signal.alarm(seconds + 60)
    for limit, value in ((resource.RLIMIT_CPU, _CPU_SECONDS), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, hard))


def _make(order: dict[str, Any]) -> None:
    """Make the header unless it exists; the lock excludes other makers."""
    path: str = order["path"]
    folder, name = os.path.split(path)
    cache = Folder(os.path.dirname(folder))
    inventory.sweep(cache)
    known = Record.read(order["record"])
    if known is None or known.image:
        return
    search = [SearchDir(*pair) for pair in order["search"]]
    started_ns = clocks.file_clock_ns()
    temporary = os.path.join(folder, f".{name}-{os.getpid()}")
    arguments = {
        "source": order["text"].encode(),
        "name": order["name"].encode(),
        "options": [option.encode() for option in order["options"]],
        "temporary": os.fsencode(temporary),
        "path": os.fsencode(path),
        **observed.for_probes(search, order["texts"]),
    }
    function, prepare, argument = order["job"]
    job = pool.Job(function, arguments, prepare, argument)
    workers = pool.Pool(jobs=1)
    try:
        outcome = workers.run_beside(job, Limits(order["seconds"], order["bytes"]))
    finally:
        workers.close()
        sealed.discard(temporary)  # There is none after a success.
    made = outcome.value if isinstance(outcome, pool.Answer) else None
    if made is None or not made["heap"] or made["problem"]:
        return  # the next attempt must save twice as much
    trace = observed.headers_read(made) or ()
    if made["observed"] is not None:
        dependencies = observed.file_set(made["observed"], search, texts=order["texts"])
    else:
        source = "\n".join([order["text"], *(t for _, t in order["texts"]), *order["options"]])
        dependencies = manifests.record(trace, search, source=source, name=order["name"])
    record = known._replace(trace=trace, image=image(path), dependencies=dependencies)
    if (
        made["make"] - made["use"] >= _LEAST_SAVED
        and not dependencies.uncacheable
        and os.stat(path).st_size <= inventory.room_for_precompiled(cache, order["limit"])
        and dependencies.newest_ns < started_ns  # otherwise it was edited while it was read
        and record.write(order["record"])
    ):
        inventory.evict(cache, order["limit"])
    else:
        sealed.discard(path)
