"""What look-ups of this process found, the least recently used of it dropped where it is too much."""

from __future__ import annotations

from _thread import allocate_lock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rtcompile.core.object_code import ObjectCode
    from rtcompile.lookup.fileset import FileSet

__all__ = ["Found", "Memory"]

_MAX_BYTES = 128 << 20
_OVERHEAD = 2048  # bytes of an entry besides code and source


class Found:
    """The code of a request, and the files that it depends on."""

    __slots__ = ("files", "obj")

    def __init__(self, obj: ObjectCode, files: FileSet) -> None:
        self.obj = obj
        self.files = files


class Memory:
    """Codes by the identity of their requests."""

    __slots__ = ("_bytes", "_found", "_guard")

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Found] = {}
        self._bytes = 0
        self._guard = allocate_lock()

    def find(self, identity: tuple[object, ...]) -> Found | None:
        """Return what was kept; who uses it checks its files."""
        return self._found.get(identity)

    def keep(self, identity: tuple[object, ...], found: Found) -> None:
        """Keep what was found in place of what was kept before."""
        with self._guard:
            before = self._found.pop(identity, None)
            if before is not None:
                self._bytes -= len(before.obj.code) + _OVERHEAD
            self._found[identity] = found
            self._bytes += len(found.obj.code) + _OVERHEAD
            while self._bytes > _MAX_BYTES and len(self._found) > 1:
                oldest = self._found.pop(next(iter(self._found)))
                self._bytes -= len(oldest.obj.code) + _OVERHEAD
