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

from rtcompile._version import __version__
from rtcompile.cache import files
from rtcompile.storage import places, trusted
from rtcompile.storage.digest import content_digest, stat_at

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rtcompile.core.request import ObjectCode

__all__ = [
    "ENVIRONMENT",
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

# Every environment variable that can change a build's result or where it is found.
ENVIRONMENT = (
    "CONDA_PREFIX",
    "CUDAHOSTCXX",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUPY_CACHE_DIR",
    "CUPY_CACHE_IN_MEMORY",
    "CUPY_CACHE_SAVE_CUDA_SOURCE",
    "CUPY_COMPILE_WITH_PTX",
    "CUPY_CUDA_COMPILE_WITH_DEBUG",
    "CUPY_DUMP_CUDA_SOURCE_ON_ERROR",
    "CUTLASS_PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "NVCC_APPEND_FLAGS",
    "NVCC_CCBIN",
    "NVCC_PREPEND_FLAGS",
    "PATH",
    "RTCOMPILE_BUNDLES",
    "RTCOMPILE_CACHE_DIR",
    "RTCOMPILE_CACHE_SHARED",
    "RTCOMPILE_CACHE_SIZE",
    "RTCOMPILE_CUTLASS_PATH",
    "RTCOMPILE_FALLBACK",
    "RTCOMPILE_JIT",
    "RTCOMPILE_JOBS",
    "RTCOMPILE_LOG",
    "RTCOMPILE_MEMORY_LIMIT",
    "RTCOMPILE_PCH",
    "RTCOMPILE_REMOTE",
    "RTCOMPILE_REMOTE_KEY_FILE",
    "RTCOMPILE_REMOTE_MIN_SECONDS",
    "RTCOMPILE_REMOTE_MODE",
    "RTCOMPILE_REMOTE_TTL",
    "RTCOMPILE_REMOTE_UNSIGNED",
    "RTCOMPILE_TIMEOUT",
    "RTCOMPILE_TRACE",
    "XDG_CACHE_HOME",
)
# If one of these is set, builds must be reported or come from elsewhere, so the full road is taken.
_FULL_ROAD = ("CUPY_CACHE_IN_MEMORY", "RTCOMPILE_BUNDLES", "RTCOMPILE_LOG", "RTCOMPILE_TRACE")
# With one of these set, what has no answer may still need no compiler, or not NVRTC.
_BY_OTHERS = (
    "NVCC_APPEND_FLAGS",
    "NVCC_PREPEND_FLAGS",
    "RTCOMPILE_FALLBACK",
    "RTCOMPILE_JIT",
    "RTCOMPILE_REMOTE",
)
# A relative path in one of these depends on the working directory, so the full road is taken.
_PLACES = (
    "CONDA_PREFIX",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUPY_CACHE_DIR",
    "CUTLASS_PATH",
    "RTCOMPILE_CACHE_DIR",
    "RTCOMPILE_CUTLASS_PATH",
)

# A relative entry of one of these, or of sys.path, does not: an interactive session has one.
_SEARCHED = ("LD_LIBRARY_PATH", "PATH")

FOLDER = "answers"  # of the cache
_SEAL = "answer"
_COMPILED_IN = 9  # the field of an object file (`objects.encode`) with the compiler's milliseconds
_LOOK_AGAIN_SECONDS = 1.0  # after which a process checks the toolchain's files again
_STATS = struct.Struct("<4q")  # `digest.stat_of`
_OWN, _PROVIDED = (
    slice(3, 7),
    slice(7, 11),
)  # an answer's fields of files: the user's, the toolkit's

_NAMES = tuple(name.encode() for name in ENVIRONMENT)
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


class Environment:
    """The environment variables and sys.path at one time, and what follows from them."""

    __slots__ = (
        "all_variables",
        "by_others",
        "checked",
        "folder",
        "folders",
        "forbidden",
        "full_road",
        "key",
        "loads",
        "sys_path",
        "toolchain",
        "variables",
        "where",
    )

    def __init__(self, variables: tuple[bytes | None, ...], sys_path: list[str]) -> None:
        self.variables = variables
        self.all_variables = dict(_all_variables() or {})
        self.sys_path = sys_path[:]
        self.folder = places.cache_dir(os.environ)
        self.folders = _package_folders()
        self.where = _where() if self._is_relative(sys_path) else None
        self.key = _digest("environment", self._words())
        self.toolchain = self.loads = b""
        self.checked = float("-inf")
        self.full_road = self._full_road() or self.where == b""
        values = dict(zip(ENVIRONMENT, variables, strict=True))
        self.by_others = any(values[name] for name in _BY_OTHERS)
        self.forbidden = values["RTCOMPILE_JIT"] == b"0"

    def _words(self) -> list[bytes]:
        """Return what the results of builds depend on, besides what each was given."""
        words = [
            b"" if value is None or _changes_nothing(name, value) else value
            for name, value in zip(ENVIRONMENT, self.variables, strict=True)
        ]
        words += [os.fsencode(path) for path in (sys.prefix, *self.folders)]
        here = self.where if self._is_relative(self.folders) else None
        return [*words, here or b""]

    def _is_relative(self, folders_of_packages: Sequence[str]) -> bool:
        """Say whether packages or programs are searched for in the working directory too."""
        values = dict(zip(ENVIRONMENT, self.variables, strict=True))
        folders = [os.fsencode(path) for path in folders_of_packages]
        for name in _SEARCHED:
            said = values[name]
            folders += said.split(b":") if said else []
        return not all(path[:1] == b"/" for path in folders)

    def _full_road(self) -> bool:
        values = dict(zip(ENVIRONMENT, self.variables, strict=True))
        if any(values[name] not in (None, b"", b"0") for name in _FULL_ROAD):
            return True
        return any((path := values[name]) and path[:1] not in b"/~" for name in _PLACES)

    def holds(self) -> bool:
        """Say whether the toolchain's files are unchanged."""
        now = time.monotonic()
        if now - self.checked < _LOOK_AGAIN_SECONDS:
            return True
        if not self.has_same_folders():
            return False
        fields = _unsealed(self.folder, self.key, notes=not self.forbidden)
        if fields is None or not _same(stamp, *fields[:2]):
            return False
        self.saw(fields)
        return True

    def name(self, words: Sequence[str], capability: tuple[int, int]) -> str:
        """Return the name of the file with the answer to a request."""
        said = [self.key.encode(), self.toolchain, b"%d.%d" % capability]
        return _digest("answer", said + [word.encode("utf-8", "surrogateescape") for word in words])

    def has_same_folders(self) -> bool:
        """Say whether the folders of packages are those of its key; if not, forget it."""
        global _environment
        if self.folders == _package_folders():
            return True
        _environment = None
        return False

    def saw(self, toolchain: Sequence[bytes]) -> None:
        """Note the state of the toolchain: answers that came from another one are none here."""
        self.toolchain = _digest("toolchain", toolchain).encode()
        self.loads = toolchain[2]
        self.checked = time.monotonic()


_environment: Environment | None = None

# Called with the words of each hit and its answer.
watchers: list[Callable[[Sequence[str], Answer], object]] = []

# What was found unchanged a moment ago, by the toolkit's headers and their stats: see `find`.
_settled: dict[tuple[bytes, bytes], float] = {}
_SETTLED_SECONDS = 1.0
_MOST_SETTLED = 256


def find(
    words: Sequence[str],
    capability: tuple[int, int],
    *,
    settled: bool = False,
    missing: Callable[[str], object] | None = None,
) -> Answer | None:
    """Return the kept result of a request; None where the full road has to be taken.

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
        return None
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


def _unchanged(fields: Sequence[bytes], settled: bool) -> bool:
    """Say whether every header is as it was, and none has come or gone."""
    if not _hold(*fields[_OWN]):
        return False
    paths, stats, *probes = fields[_PROVIDED]
    read, now = (paths, stats), time.monotonic()
    if paths and not (settled and now - _settled.get(read, float("-inf")) < _SETTLED_SECONDS):
        if not _same(stat_at, *read):
            return False
        if settled:
            if len(_settled) >= _MOST_SETTLED:
                _settled.clear()
            _settled[read] = now
    return _probed(*probes)


def take_hits() -> int:
    """Return the number of hits since the last call, for the cache's statistics."""
    global _hits
    hits, _hits = _hits, 0
    return hits


def environment() -> Environment:
    """Return the variables and folders that builds depend on: the same object while they are the same."""
    global _environment
    here = _environment
    if (
        here is not None
        # All variables at once, a quarter of a microsecond; the deciding ones only where some
        # differ.
        and (here.all_variables == _all_variables() or _variables() == here.variables)
        and here.sys_path == sys.path
        and (here.where is None or here.where == _where())
    ):
        return here
    here = _environment = Environment(_variables(), sys.path)
    return here


def _all_variables() -> dict[bytes, bytes] | None:
    """Return the process's variables as ``os.environ`` keeps them, which is not documented."""
    return getattr(os.environ, "_data", None)


def short_road() -> Environment | None:
    """Return the environment; None where builds have to take the full road, and none is kept."""
    here = environment()
    if here.full_road or _needs_full_road():
        return None
    return here


def _variables() -> tuple[bytes | None, ...]:
    """Return the values of `ENVIRONMENT`.

    ``os.environ`` keeps its values as bytes in ``_data``, which is not documented. Its methods take
    ten times as long, 20 microseconds of each hit.
    """
    data = _all_variables()
    if data is None or b"PATH" not in data:
        return tuple(os.environb.get(name) for name in _NAMES)
    return tuple(map(data.get, _NAMES))


def _changes_nothing(name: str, value: bytes) -> bool:
    """Say whether a variable's value is a valid one that changes no result.

    `rtcompile warm --jobs` sets one of these, and a program that may not compile the other.
    """
    if name == "RTCOMPILE_JOBS":
        return value.isdigit() and len(value) < 4 and int(value) > 0
    return name == "RTCOMPILE_JIT" and value in (b"0", b"1")


def _package_folders() -> list[str]:
    """Return the entries of sys.path that the toolchain's search looks into.

    The folder of the program's script is none of them: what `rtcompile warm` or a script in
    another folder built is found. Without a CuPy in one of them, a CuPy that only an import hook
    finds may count, so all entries do.
    """
    folders = places.site_folders(sys.path)
    has_cupy = any(os.path.isdir(os.path.join(folder, "cupy")) for folder in folders)
    return folders if has_cupy else sys.path[:]


def _where() -> bytes:
    """Return the working directory; nothing where it was removed."""
    try:
        return os.getcwdb()
    except OSError:
        return b""


def _needs_full_road() -> bool:
    """Say whether builds are recorded, logged or found in bundles, which needs the full road."""
    logs, bundles = sys.modules.get("rtcompile.watching.logs"), sys.modules.get("rtcompile.bundles")
    if (logs is not None and logs.listeners) or (bundles is not None and bundles._bundles):
        return True
    logging = sys.modules.get("logging")
    return logging is not None and logging.getLogger("rtcompile").isEnabledFor(logging.INFO)


def _digest(kind: str, words: Sequence[bytes]) -> str:
    parts = (kind.encode(), __version__.encode(), *words)
    return content_digest(b"".join([b"%d:%s" % (len(part), part) for part in parts]))


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
