"""The short road of a hit: the arguments of a request lead directly to one file with the code.

The full road (options, toolchain, key, manifest, object) imports many modules. Its result is kept
(`kept_answers`) under a digest of the unchanged arguments, with everything that the result depends
on. When a new process asks with the same arguments, it compares the stats of these files and loads
the code. If any of them differs, the full road is taken.

What the first hit of a process costs (microseconds, on a machine of 2026): the environment's
variables 6, its file 60, the 40 stats of the toolchain 70; each hit: the digest of the words 6, the
file 45, the seal of a 5 KB cubin 8, a stat per header 1.3.

This module imports only what a hit needs. It defines no dataclass: each takes 1 ms.
"""

from __future__ import annotations

import os
import struct
import sys
import time

from rtcompile.cache import files, surroundings
from rtcompile.cache.surroundings import Surroundings
from rtcompile.storage import trusted
from rtcompile.storage.digest import stat_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rtcompile.bundles.asked import FoundShipped
    from rtcompile.core.request import ObjectCode

__all__ = [
    "FOLDER",
    "Answer",
    "environment",
    "find",
    "packed",
    "sealed",
    "short_road",
    "stamp",
    "take_hits",
    "watchers",
]

FOLDER = "answers"  # of the cache
_SEAL = "answer"
_COMPILED_IN = 9  # the field of an object file (`objects.encode`) with the compiler's milliseconds
_LOOK_AGAIN_SECONDS = 1.0  # after which a process checks the toolchain's files again
_STATS = struct.Struct("<4q")  # `digest.stat_of`
_OWN, _PROVIDED = (
    slice(3, 7),
    slice(7, 11),
)  # an answer's fields of files: the user's, the toolkit's

_hits = 0


class Answer:
    """The kept result of a request.

    Attributes
    ----------
    code : bytes
        The machine code.
    names : tuple of (str, str)
        Name expression and its symbol.
    depends_on_files : bool
        Whether the build read any file, or asked whether there is one.
    """

    __slots__ = (
        "_compiled_in",
        "_object",
        "_objects_key",
        "_own",
        "_read",
        "code",
        "depends_on_files",
        "names",
    )

    def __init__(self, key: str, found: Sequence[bytes], fields: Sequence[bytes]) -> None:
        names = fields[0].decode().split("\0")[:-1]
        self.code = found[0]
        self._compiled_in = found[_COMPILED_IN]
        self.names = tuple(zip(names[::2], names[1::2], strict=True))
        self.depends_on_files = any(fields[3:11])
        self._objects_key = key
        self._object, self._read = fields[1:3]
        self._own = fields[_OWN]

    def compiled_in(self) -> float:
        """Return the milliseconds that the compiler took."""
        return float(self._compiled_in)

    def own_files_hold(self) -> bool:
        """Say whether the user's own headers are as they were, and none has come or gone.

        Not so the toolkit's, which are hundreds: `find` looks at them too.
        """
        return _hold(*self._own)

    def object_code(self) -> ObjectCode:
        """Return the code as the full road would return it."""
        from rtcompile.cache import manifests, objects

        decoded = objects.decode(self._objects_key, self._object)
        builds = manifests.decode(self._objects_key, self._read, ())
        assert decoded is not None  # the seal around it was verified
        assert builds
        return manifests.hit(decoded[1], builds[0], "disk")


class Environment(Surroundings):
    """The surroundings of this process, and the toolchain that was found in them."""

    __slots__ = ("checked", "loads", "looked", "toolchain")

    def __init__(self, variables: tuple[bytes | None, ...], sys_path: list[str]) -> None:
        super().__init__(variables, sys_path)
        self.toolchain = self.loads = b""
        self.checked = float("-inf")
        self.looked = time.monotonic()

    def holds(self) -> bool:
        """Say whether the toolchain's files are unchanged."""
        now = time.monotonic()
        if now - self.checked < _LOOK_AGAIN_SECONDS:
            return True
        if now - self.looked >= _LOOK_AGAIN_SECONDS:
            if not self.has_same_folders():
                return False
            self.looked = now
        fields = _unsealed(self.folder, self.key, notes=not self.forbidden)
        if fields is None or not _same(stamp, *fields[:2]):
            return False
        self.saw(fields)
        return True

    def name(self, words: Sequence[str], capability: tuple[int, int]) -> str:
        """Return the name of the file with the answer to a request."""
        said = [self.key.encode(), self.toolchain, b"%d.%d" % capability]
        return surroundings.digest(
            "answer", said + [word.encode("utf-8", "surrogateescape") for word in words]
        )

    def has_same_folders(self) -> bool:
        """Say whether the folders of packages are those of its key; if not, forget it."""
        global _environment
        if super().has_same_folders():
            return True
        _environment = None
        return False

    def saw(self, toolchain: Sequence[bytes]) -> None:
        """Note the state of the toolchain: answers that came from another one are none here."""
        self.toolchain = surroundings.digest("toolchain", toolchain).encode()
        self.loads = toolchain[2]
        self.checked = time.monotonic()


_environment: Environment | None = None

# Called with the words of each hit and its answer.
watchers: list[Callable[[Sequence[str], Answer | FoundShipped], object]] = []

# When what was found unchanged: the toolkit's headers, their stats, and what must be absent or present.
_settled: dict[tuple[bytes, ...], float] = {}
_SETTLED_SECONDS = 1.0
_MOST_SETTLED = 256


def find(
    words: Sequence[str],
    capability: tuple[int, int],
    *,
    settled: bool = False,
    missing: Callable[[str], object] | None = None,
) -> Answer | FoundShipped | None:
    """Return the kept result of a request, or a bundle's; None where the full road has to be taken.

    Parameters
    ----------
    words : sequence of str
        All arguments of the caller, in a fixed order.
    capability : (int, int)
        The compute capability of the device.
    settled : bool
        Whether the toolkit's headers that another answer had in common, and that were found
        unchanged within the last second, are taken as they were: CuPy's own kernels share a
        hundred.
    missing : callable, optional
        Called where the full road will need a compiler, unless other words have led to the same
        code; with what that compiler's worker loads, "" where that is not known.
    """
    global _hits
    here = short_road()
    if here is None:
        return _shipped(words, capability, settled)
    fields = None
    if here.holds():
        name = here.name(words, capability)
        fields = _unsealed(here.folder, name, notes=not here.forbidden)
        if fields == []:  # what it leads to is not kept here
            return None
    if fields is None or not _unchanged(fields, settled):
        if missing is not None and not here.by_others:
            missing(os.fsdecode(here.loads))
        return None
    code = files.unseal("object", name, fields[1])
    if code is None:
        return None
    _hits += 1
    if _hits == 1:
        import atexit

        atexit.register(_note_hits)
    answer = Answer(name, code, fields)
    for watch in watchers:
        watch(words, answer)
    return answer


def _shipped(
    words: Sequence[str], capability: tuple[int, int], settled: bool
) -> FoundShipped | None:
    """Return what the bundles in use have, if nothing else than the words decides about it."""
    here = environment()
    if not _uses_bundles(here) or here.full_road or _needs_full_road():
        return None
    from rtcompile.bundles import asked, use

    if not here.changes_requests():
        for path in here.bundles:
            use(path)
        found = asked.find(words, capability, settled=settled)
        if found is not None:
            for watch in watchers:
                watch(words, found)
            return found
    return None


def _unchanged(fields: Sequence[bytes], settled: bool) -> bool:
    """Say whether every header is as it was, and none has come or gone."""
    if not _hold(*fields[_OWN]):
        return False
    if not settled:
        return _hold(*fields[_PROVIDED])
    provided, now = tuple(fields[_PROVIDED]), time.monotonic()
    if now - _settled.get(provided, float("-inf")) < _SETTLED_SECONDS:
        return True
    if not _hold(*provided):
        return False
    if len(_settled) >= _MOST_SETTLED:
        _settled.clear()
    _settled[provided] = now
    return True


def take_hits() -> int:
    """Return the number of hits since the last call, for the cache's statistics."""
    global _hits
    hits, _hits = _hits, 0
    return hits


def environment() -> Environment:
    """Return the variables and folders that builds depend on: the same object while they are the same."""
    global _environment
    here = _environment
    if here is not None and here.are_these():
        return here
    here = _environment = Environment(surroundings.variables(), sys.path)
    return here


def short_road() -> Environment | None:
    """Return the environment; None where builds have to take the full road, and none is kept."""
    here = environment()
    if here.full_road or _needs_full_road() or _uses_bundles(here):
        return None
    return here


def _uses_bundles(here: Environment) -> bool:
    """Say whether this process uses bundles, which are asked before the cache."""
    bundles = sys.modules.get("rtcompile.bundles")
    return bool(here.bundles) or (bundles is not None and bool(bundles._bundles))


def _needs_full_road() -> bool:
    """Say whether builds are recorded or logged, which needs the full road."""
    logs = sys.modules.get("rtcompile.watching.logs")
    if logs is not None and logs.listeners:
        return True
    logging = sys.modules.get("logging")
    return logging is not None and logging.getLogger("rtcompile").isEnabledFor(logging.INFO)


def sealed(name: str, fields: Sequence[bytes]) -> bytes:
    """Return the content of the file of this name in `FOLDER`."""
    return files.seal(_SEAL, name, fields)


def _unsealed(cache: str, name: str, notes: bool) -> list[bytes] | None:
    """Return the fields of a file; None if it does not exist, is damaged, or must not be trusted.

    Its use is noted for eviction if the caller `notes` any.
    """
    try:
        top = trusted.open_folder(cache, private=False)
        try:
            folder = trusted.open_folder(FOLDER, dir_fd=top)
        finally:
            os.close(top)
        try:
            descriptor, status = trusted.open_file(name, dir_fd=folder)
            try:
                data = trusted.contents(descriptor, status.st_size)
                if notes and abs(time.time() - status.st_mtime) > files.USE_RESOLUTION:
                    _note_use(descriptor)
            finally:
                os.close(descriptor)
        finally:
            os.close(folder)
    except OSError:
        return None
    return files.unseal(_SEAL, name, data)


def _note_use(descriptor: int) -> None:
    """Note a file's use for eviction, where the cache can be written."""
    try:  # noqa: SIM105 - `contextlib` is not imported here
        os.utime(descriptor)
    except OSError:
        pass


def _hold(paths: bytes, stats: bytes, absent: bytes, present: bytes) -> bool:
    """Say whether every file is as it was, and none has come or gone."""
    return _same(stat_at, paths, stats) and _probed(absent, present)


def packed(stats: Sequence[tuple[str, tuple[int, ...]]]) -> list[bytes]:
    """Return the two fields in which paths and their stats are kept."""
    paths = "".join(f"{path}\0" for path, _ in stats).encode("utf-8", "surrogateescape")
    return [paths, b"".join(_STATS.pack(*stat) for _, stat in stats)]


def _same(look: Callable[[bytes], tuple[int, ...]], paths: bytes, stats: bytes) -> bool:
    """Say whether every file's stat is as recorded."""
    if not paths:
        return True
    names = paths.split(b"\0")[:-1]
    return len(stats) == len(names) * _STATS.size and all(
        look(name) == stat for name, stat in zip(names, _STATS.iter_unpack(stats), strict=True)
    )


def _probed(absent: bytes, present: bytes) -> bool:
    """Say whether the paths that must be absent or present still are."""
    access = os.access
    return not any(access(path, os.F_OK) for path in absent.split(b"\0")[:-1]) and all(
        access(path, os.F_OK) for path in present.split(b"\0")[:-1]
    )


def stamp(path: str | bytes) -> tuple[int, int, int, int]:
    """Return the stat by which a changed toolchain is noticed, without ctime, which links change."""
    size, mtime_ns, _, __ = stat_at(path)
    return size, mtime_ns, 0, 0


def _note_hits() -> None:
    hits = take_hits()
    if hits and _environment is not None and os.environ.get("RTCOMPILE_JIT") != "0":
        from rtcompile.cache.folder import Folder

        Folder(_environment.folder).note(hits=hits)
