"""The process that makes one precompiled header, and outlives the program whose build wanted it.

``python -I -S pch_maker.py NICE``, with two descriptors: its order, and a lock that it holds until it
ends. It has its own session, a low priority, no terminal and no output. The compiler runs in a worker
of this process, which limits its time and memory, removes its files, and ends with this process.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

if __name__ == "__main__":
    # An empty module replaces the package, so that its `__init__` and imports are not loaded.
    _package = ModuleType("rtcompile")
    _package.__path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]
    sys.modules["rtcompile"] = _package

    from rtcompile.workers import zygote

    os.setsid()
    os.nice(max(0, int(sys.argv[1]) - os.nice(0)))
    zygote.keep_priority()

from typing import Any

from rtcompile._version import __version__
from rtcompile.compilers import observed
from rtcompile.compilers import pch_files as disk
from rtcompile.compilers.pch_files import READY, REFUSED, SEEN, Record
from rtcompile.files import clocks, sealed
from rtcompile.files.headers import SearchDir
from rtcompile.request import units
from rtcompile.request.units import Limits
from rtcompile.store import evict, manifests
from rtcompile.store.folder import Folder
from rtcompile.workers import pool, process, protocol

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
    python = process.interpreter()
    environ = units.worker_environ(os.environ)
    if os.environ.get("TMPDIR"):
        environ["TMPDIR"] = os.path.realpath(os.environ["TMPDIR"])
    descriptors = [
        protocol.pack({**order, "version": __version__, "seconds": _SECONDS, "bytes": _BYTES})
    ]
    try:
        descriptors.append(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        # Copies with high numbers, so no dup2 overwrites the source of a later one.
        sources = []
        for descriptor in (*descriptors, lock):
            sources.append(process.above_standard(descriptor))
            descriptors.append(sources[-1])
        return os.posix_spawn(
            python,
            [python, "-I", "-S", os.path.abspath(__file__), str(order["nice"])],
            environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, sources[0], _ORDER),
                (os.POSIX_SPAWN_DUP2, sources[1], 1),
                (os.POSIX_SPAWN_DUP2, sources[1], 2),
                (os.POSIX_SPAWN_DUP2, sources[2], _LOCK),
            ],
            setsigmask=(),
            setsigdef=process.SIGNALS,
        )
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


# --- in the maker's process ------------------------------------------------------------------


def main() -> None:
    """Make the header that the order names; end silently on any error."""
    order = protocol.unpack(os.dup(_ORDER))
    try:
        if order["version"] == __version__:  # else rtcompile was upgraded meanwhile
            _detach(order["seconds"])
            _Maker(order).make()
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
        disk.sweep(os.path.dirname(self.path))
        known = Record.read(self.record, self.search)
        if known is not None and known.state != SEEN:
            return
        started_ns = clocks.file_clock_ns()
        temporary = f"{self.path}.tmp{os.getpid()}"
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
            self._refuse(f"making it ended in a {outcome.kind}")

    def _publish(self, made: dict[str, Any], started_ns: int) -> None:
        if not made["heap"]:
            return  # the limits of this process, not this prefix
        if made["problem"]:
            if not made["full"]:
                self._refuse(made["problem"])
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
        if saved < _LEAST_SAVED:
            self._refuse(f"it would save {saved * 1000:.0f} ms")
        elif dependencies.uncacheable:
            self._refuse(dependencies.uncacheable)
        elif os.stat(self.path).st_size > evict.room_for_precompiled(
            self.cache, self.order["limit"]
        ):
            sealed.discard(self.path)  # The next one must be worth more.
        elif dependencies.newest_ns >= started_ns:
            self._drop()  # edited while it was read, so its content is unknown
        else:
            record = Record(READY, trace, disk.image(self.path), b"", dependencies)
            if not record.write(self.record, self.search):
                self._drop()
                return
            # The checksum takes half a second and is added later, so that no build waits for it.
            record._replace(checksum=disk.checksum(self.path)).write(self.record, self.search)
            evict.evict(self.cache, self.order["limit"])

    def _refuse(self, reason: str) -> None:
        self._drop()
        Record(REFUSED, reason=reason).write(self.record, self.search)

    def _drop(self) -> None:
        sealed.discard(self.path)
        sealed.discard(self.record)


if __name__ == "__main__":
    try:
        main()
    except Exception:  # noqa: BLE001  # nobody reads an error of this process
        # Nobody reads an error: the next build finds no header and does without it.
        sys.exit(1)
