"""Precompiled headers on disk: their records, the check of their files, and the process that makes one.

The maker outlives the program whose build wanted the header. It has two descriptors, its order and a lock
that it holds until it ends, its own session, a low priority, no terminal and no output. The compiler runs
in a worker of it, which limits its time and memory, removes its files, and ends with it.
"""

from __future__ import annotations

import mmap
import os
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
from rtcompile.files.sealed import content_digest, stat_of
from rtcompile.request import units
from rtcompile.request.units import Limits
from rtcompile.store import inventory, manifests
from rtcompile.store.folder import Folder
from rtcompile.workers import pool, process, protocol, zygote

_MOST_BYTES = 1 << 34
_UNKNOWN = float("inf")
_COUNTS = struct.Struct("<3qd")
_DIGEST_BYTES = 16
_OWN_FIELDS = 6

SEEN, READY, REFUSED = "seen", "ready", "refused"
_NO_DEPENDENCIES = FileSet()


class Record(NamedTuple):
    """What is known of a prefix: seen in builds, ready to be used, or refused."""

    state: str
    trace: tuple[str, ...] = ()
    image: bytes = b""
    checksum: bytes = b""
    dependencies: FileSet = _NO_DEPENDENCIES
    builds: int = 0  # without a precompiled header, since one of the files changed
    makings: int = 0  # attempts to make one
    seconds: float = _UNKNOWN  # the shortest time that one of the builds spent on reading
    repeats: int = 0  # builds of a program that had been built before, as who edits a kernel does
    programs: tuple[bytes, ...] = ()  # digests of the last programs

    @classmethod
    def read(cls, path: str) -> Record | None:
        """Return the record of this path; None if there is none, or a damaged one."""
        try:
            fields = sealed.unseal("pch", os.path.basename(path), sealed.read_path(path))
        except OSError:
            return None
        if fields is None or len(fields) != _OWN_FIELDS + PACKED_FIELDS:
            return None
        state, trace, image, checksum, counts, programs, *files = fields
        builds, makings, repeats, seconds = _COUNTS.unpack(counts)
        return cls(
            state.decode(),
            tuple(texts_in(trace)),
            image,
            checksum,
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
        """Write the record; False if the folder takes no files."""
        fields = [
            self.state.encode(),
            joined(self.trace),
            self.image,
            self.checksum,
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
    """Identify a file by its stat, since hashing 290 MB takes half a second."""
    try:
        descriptor, status = sealed.open_path(path, most=_MOST_BYTES)
    except OSError:
        return b""
    os.close(descriptor)
    return struct.pack("<4q", *stat_of(status))


def checksum(path: str) -> bytes:
    """Return the digest of the whole file; half a second for CuTe's."""
    try:
        descriptor, _ = sealed.open_path(path, most=_MOST_BYTES)
        with (
            open(descriptor, "rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view,
        ):
            return bytes.fromhex(content_digest(memoryview(view)))
    except (OSError, ValueError):
        return b""


def changed_since(paths: Sequence[str], record: str) -> bool:
    """Return whether a file is newer than the record: a header that is being edited is not precompiled."""
    try:
        then = os.stat(record).st_mtime_ns
        return any(os.stat(path).st_mtime_ns >= then for path in paths)
    except OSError:
        return True


def private_folder(cache_dir: str) -> str | None:
    """Return the folder for precompiled headers, which the compiler trusts; None if not private."""
    folder = os.path.join(cache_dir, "pch")
    try:
        os.makedirs(cache_dir, 0o700, exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        os.close(Folder(cache_dir).open("pch"))
    except OSError:
        return None
    return None if sealed.can_be_swapped(cache_dir) else folder


# --- The maker: started by the build that wants the header -----------------------------------------

# At 15 a maker gets a thirtieth of a busy core, and a build on that core takes a fiftieth longer; at 12
# it takes up to a tenth longer. With SCHED_IDLE no header would ever be finished on a busy core. Linux
# derives the priority on disks from it.
NICE = 15
NICE_WHEN_AWAITED = 5

_ORDER, _LOCK = 0, 3  # descriptors
_SECONDS = 600  # a busy machine may take that long
_CPU_SECONDS = 120  # CuTe takes 3
_BYTES = 4 << 30  # CuTe takes 0.6
_OTHERS_FAULT = (9, 7, 25)  # SIGKILL, SIGBUS, SIGXFSZ: no memory, a full disk, `ulimit -f`
# A header that saves less than this is not kept.
_LEAST_SAVED = 0.02


def start(order: dict[str, Any], lock: int) -> int:
    """Start a maker and return its process id; the descriptor of the lock stays the caller's."""
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
        if order["version"] == __version__:  # else rtcompile was upgraded meanwhile
            _detach(order["seconds"])
            _Maker(order).make()
    except Exception:  # noqa: BLE001  # nobody reads it: the next build finds no header and does without
        sys.exit(1)
    finally:
        sealed.discard(order["lock"])  # before the lock ends, with this process


def _detach(seconds: int) -> None:
    """Leave what belongs to the caller, and set an end to this process."""
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
    # The worker watches the compiler; these limits are a second line of defence.
    signal.alarm(seconds + 60)
    for limit, value in ((resource.RLIMIT_CPU, _CPU_SECONDS), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, hard))


class _Maker:
    """One header, from its order to its record."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.path: str = order["path"]
        self.record: str = order["record"]
        self.search = [SearchDir(label, path) for label, path in order["search"]]
        self.text: str = order["text"]
        self.cache = Folder(os.path.dirname(os.path.dirname(self.path)))

    def make(self) -> None:
        """Make the header unless it exists or was refused; the lock keeps other makers away."""
        inventory.sweep(self.cache)
        known = Record.read(self.record)
        if known is not None and known.state != SEEN:
            return
        started_ns = clocks.file_clock_ns()
        folder, name = os.path.split(self.path)
        temporary = os.path.join(folder, f".{name}-{os.getpid()}")
        arguments = {
            "source": self.text.encode(),
            "name": self.order["name"].encode(),
            "options": [option.encode() for option in self.order["options"]],
            "temporary": os.fsencode(temporary),
            "path": os.fsencode(self.path),
            **observed.for_probes(self.search, self.order["texts"]),
        }
        function, prepare, argument = self.order["job"]
        job = pool.Job(function, arguments, prepare, argument, warm=True)
        workers = pool.Pool(jobs=1)
        try:
            outcome = workers.run_beside(
                job, Limits(self.order["seconds"], self.order["bytes"]), (temporary,)
            )
        finally:
            workers.close()
        if isinstance(outcome, pool.Answer):
            self._publish(outcome.value, started_ns)
        elif outcome.kind == "memory" or (
            outcome.kind == "crash" and outcome.signal not in _OTHERS_FAULT
        ):
            self._refuse()

    def _publish(self, made: dict[str, Any], started_ns: int) -> None:
        if not made["heap"]:
            return  # the limits of this process, not this prefix
        if made["problem"]:
            if not made["full"]:
                self._refuse()
            return
        saved = made["make"] - made["use"]
        trace = observed.headers_read(made) or ()
        texts = self.order["texts"]
        if made["asked"] is not None:
            dependencies = observed.file_set(made["asked"], self.search, texts=texts)
        else:
            source = "\n".join([self.text, *(t for _, t in texts), *self.order["options"]])
            name = self.order["name"]
            dependencies = manifests.record(trace, self.search, source=source, name=name)
        if saved < _LEAST_SAVED or dependencies.uncacheable:
            self._refuse()
        elif os.stat(self.path).st_size > inventory.room_for_precompiled(
            self.cache, self.order["limit"]
        ):
            sealed.discard(self.path)  # The next one must be worth more.
        elif dependencies.newest_ns >= started_ns:
            self._drop()  # edited while it was read, so its content is unknown
        else:
            record = Record(READY, trace, image(self.path), b"", dependencies)
            if not record.write(self.record):
                self._drop()
                return
            # The checksum takes half a second and is added later, so that no build waits for it.
            record._replace(checksum=checksum(self.path)).write(self.record)
            inventory.evict(self.cache, self.order["limit"])

    def _refuse(self) -> None:
        self._drop()
        Record(REFUSED).write(self.record)

    def _drop(self) -> None:
        sealed.discard(self.path)
        sealed.discard(self.record)
