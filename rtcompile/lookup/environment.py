"""`Environment`: one snapshot of everything that builds depend on besides their requests.

It contains the environment variables, the folders of packages, and the toolchain. `current` returns the same object
until something changes. Every look-up needs it, so this module imports very little.
"""

from __future__ import annotations

import os
import struct
import sys
import time

from rtcompile import __version__, forks
from rtcompile.errors import InvalidRequest, warn
from rtcompile.files import sealed
from rtcompile.files.sealed import content_digest
from rtcompile.request.values import absolute
from rtcompile.settings import (
    SETTINGS_VARIABLES,
    Settings,
    has_folder,
    import_folders,
    named_folder,
    site_folders,
)
from rtcompile.store.folder import Folder, Memory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# These variables affect which compilers and headers are found, or their behaviour.
TOOLCHAIN_VARIABLES = (
    "CONDA_PREFIX",
    "CUDAHOSTCXX",
    "CUDA_HOME",
    "CUDA_PATH",
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
    "RTCOMPILE_CUTLASS_PATH",
)
_OF_STORES = (
    "RTCOMPILE_REMOTE_KEY_FILE",
    "RTCOMPILE_REMOTE_MODE",
    "RTCOMPILE_REMOTE_TOKEN",
    "RTCOMPILE_REMOTE_TTL",
    "RTCOMPILE_REMOTE_UNSIGNED",
)
# Every environment variable that rtcompile reads to make a build.
VARIABLES = (*TOOLCHAIN_VARIABLES, *_OF_STORES, *SETTINGS_VARIABLES)
_NAMES = tuple(name.encode() for name in VARIABLES)
_OTHERS = (b"RTCOMPILE_RUN", b"RTCOMPILE_TEST_")  # of the command and the tests
_known = {*_NAMES}  # and the variables already warned about

# These name a folder, which may be relative to the working directory or begin with ``~``.
_FOLDERS = frozenset(
    {"CONDA_PREFIX", "CUDA_HOME", "CUDA_PATH", "CUTLASS_PATH", "RTCOMPILE_CUTLASS_PATH"}
)
_LISTS = ("LD_LIBRARY_PATH", "PATH")  # of folders

# The search for a host compiler takes the first program on PATH that these variables name, then the usual names.
_HOST_VARIABLES = ("NVCC_CCBIN", "CUDAHOSTCXX")
_HOST_COMPILERS = ("g++", "c++")

CHECK_SECONDS = 1.0  # interval between checks of the toolchain's files
_STAT = struct.Struct("<3q")  # `signature`
Signature = tuple[int, int, int]  # a file's size, mtime and inode; three -1 for none
TOOLCHAINS = "toolchains"  # the cache's folder
SEAL = "toolchain"  # the kind of the files in it


def _warn_of(name: bytes) -> None:
    import difflib

    _known.add(name)
    text = os.fsdecode(name)
    near = difflib.get_close_matches(text, [n for n in VARIABLES if n.startswith("RTCOMPILE_")], 1)
    warn(f"{text} is not a variable of rtcompile" + "".join(f"; is {n} meant?" for n in near))


class Environment:
    """The variables, ``sys.path`` and the toolchain at one time.

    `key` is the digest of all variables that can change a result, and of the folders of packages. `toolchain_key`
    is the digest of the inputs of the toolchain search besides files, and names the cache's file with the
    toolchain. It covers the programs found on PATH and not PATH itself, so a shell, a service and a scheduler share
    one file, whose fields are `toolchain`. `loads` is the library that a worker loads for it; "" if unknown.
    """

    def __init__(self) -> None:
        # `os.environb` keeps the variables in this dictionary, which is not documented.
        self._everything = dict(getattr(os.environb, "_data", os.environb))
        self._values = values = tuple(map(self._everything.get, _NAMES))
        for name in self._everything:
            if name[:10] == b"RTCOMPILE_" and name not in _known and not name.startswith(_OTHERS):
                _warn_of(name)
        self._sys_path = sys.path[:]
        self._problem: InvalidRequest | None = None
        self.usable_settings = Settings("", cache_on_disk=False)  # if the variables are invalid
        try:
            self.usable_settings = Settings.from_environ()
        except InvalidRequest as error:
            self._problem = error
        settings = self.usable_settings
        self.looks_ahead = self._problem is None and settings.ahead and settings.jit
        self.site_dirs = site_folders()
        self._folders = _package_folders()
        given = {n: os.fsdecode(v) for n, v in zip(VARIABLES, values, strict=True) if v}
        listed = [path for name in _LISTS for path in given.get(name, "/").split(os.pathsep)]
        named = (*_FOLDERS, "CUPY_CACHE_DIR", "RTCOMPILE_CACHE_DIR")
        relative = [given[n] for n in named if given.get(n, "/")[0] not in "/~"]
        relative += [path for path in (*listed, *self._folders) if path[:1] != "/"]
        # A relative entry of sys.path, as in an interactive session, is a folder of packages if the working
        # directory contains packages.
        placed = relative or [path for path in import_folders() if path[:1] != "/"]
        self._where = _working_directory() if placed else None
        counted = [f"{name}={given[name]}" for name in TOOLCHAIN_VARIABLES if name in given]
        counted += [sys.prefix, *self._folders, (self._where or "") if relative else ""]
        try:
            self.toolchain_key = _toolchain_key(given, self.site_dirs)
        except InvalidRequest as error:  # a folder is relative to a directory that was removed
            self._problem = error
            self.toolchain_key = ""
        self.key = versioned_digest("environment", [*counted, self.toolchain_key])
        self.folder = Folder(self.usable_settings.cache_dir, writable=self.usable_settings.jit)
        self.memory: Memory | None = None
        self.loads = ""
        self.capability: tuple[int, ...] = ()
        self.toolchain: Sequence[bytes] | None = None  # the fields of its file
        self._path_folders: dict[str, Signature] | None = None
        self._signature = ""
        self._checked = float("-inf")

    @property
    def variables(self) -> Mapping[str, str]:
        """All variables of the process, as text."""
        return {os.fsdecode(n): os.fsdecode(value) for n, value in self._everything.items()}

    @property
    def settings(self) -> Settings:
        """The settings in the variables; raise `InvalidRequest` if one of them cannot be understood."""
        if self._problem is not None:
            raise InvalidRequest(str(self._problem))
        return self.usable_settings

    def is_current(self) -> bool:
        """Return whether variables, ``sys.path`` and, where it counts, the working directory are the same."""
        everything = getattr(os.environb, "_data", os.environb)
        return (
            # Comparing all takes a quarter of a microsecond; the relevant ones are compared only if some differ.
            (self._everything == everything or tuple(map(everything.get, _NAMES)) == self._values)
            and self._sys_path == sys.path
            and (self._where is None or self._where == _working_directory())
        )

    def signature(self, trusted: float = CHECK_SECONDS) -> str:
        """Return the digest of the toolchain and its files; "" if they changed or are unknown."""
        now = time.monotonic()
        if now - self._checked < trusted:
            return self._signature
        if self._folders != _package_folders():
            forget()
            return ""
        if self.toolchain is None and self.usable_settings.cache_on_disk:
            data = self.folder.read(TOOLCHAINS, self.toolchain_key)
            fields = None if data is None else sealed.unseal(SEAL, self.toolchain_key, data)
            if fields is not None and len(fields) == 5:
                self.note(fields)
        if self.toolchain is None or not self._is_unchanged(self.toolchain):
            self.toolchain, self._signature = None, ""
            return ""
        self._checked = now
        return self._signature

    def note(self, fields: Sequence[bytes], *, writes: bool = False) -> None:
        """Set this environment's toolchain: the results of `packed`, the toolchain, and the devices' capability.

        If it `writes`, later processes find it too, unless the folder or RTCOMPILE_JIT=0 forbids that.
        """
        self.toolchain = fields
        now = versioned_digest("toolchain", [self.toolchain_key, *fields[:2], fields[3]])
        if now != self._signature:
            self.memory = None  # results of another toolchain must not be found any more
        self._signature = now
        self.loads = os.fsdecode(fields[2])
        self.capability = tuple(fields[4])
        self._path_folders = None
        self._checked = float("-inf")
        settings = self.usable_settings
        if writes and self._problem is None and settings.cache_on_disk and settings.jit:
            try:
                self.folder.prepare()
                data = sealed.seal(SEAL, self.toolchain_key, fields)
                self.folder.publish(TOOLCHAINS, self.toolchain_key, data)
            except OSError:
                pass  # the next process searches again

    def _is_unchanged(self, fields: Sequence[bytes]) -> bool:
        if not are_unchanged(fields):
            return False
        # A program may have been installed in a folder of PATH. The file does not list these folders, since the
        # processes that share it have different ones.
        folders = os.environ.get("PATH", "").split(os.pathsep)
        now = {folder: signature(folder) for folder in folders}
        before, self._path_folders = self._path_folders or now, now
        if before != now:
            forget()  # PATH may now lead to another program than the key says.
        return before == now


_environment: Environment | None = None


def current() -> Environment:
    """Return the environment's snapshot: the same object until something changes."""
    global _environment
    here = _environment
    if here is None or not here.is_current():
        here = _environment = Environment()
    return here


@forks.in_child  # A thread of the parent may hold a lock of the snapshot's objects.
def forget() -> None:
    """Let the next `current` make a new snapshot."""
    global _environment
    _environment = None


def looked_again() -> Environment:
    """Search the folders of packages and PATH again, and return the current environment."""
    global _environment
    before, now = current(), Environment()
    if now.key == before.key:
        return before  # Another thread may be building with it.
    _environment = now
    return now


def packed(signatures: Mapping[str, Signature], loads: str) -> list[bytes]:
    """Return a toolchain's paths, stat signatures and library as fields of a file."""
    paths = "".join([f"{path}\0" for path in signatures])
    stats = [_STAT.pack(*stat) for stat in signatures.values()]
    return [os.fsencode(paths), b"".join(stats), os.fsencode(loads)]


def are_unchanged(fields: Sequence[bytes]) -> bool:
    """Return whether the files of a toolchain have the signatures in the fields of `packed`."""
    names, stats = fields[0].split(b"\0")[:-1], fields[1]
    return len(stats) == len(names) * _STAT.size and all(
        signature(name) == stat for name, stat in zip(names, _STAT.iter_unpack(stats), strict=True)
    )


def signature(path: str | bytes) -> Signature:
    """Return the size, mtime and inode of a toolchain's file; hard links change the ctime."""
    try:
        status = os.stat(path or ".")
    except OSError:
        return -1, -1, -1
    return status.st_size, status.st_mtime_ns, status.st_ino


def versioned_digest(kind: str, parts: Iterable[str | bytes]) -> str:
    """Return the digest of length-prefixed texts of a kind, for this version."""
    data = b""
    for part in (kind, __version__, *parts):
        field = part if isinstance(part, bytes) else part.encode("utf-8", "surrogateescape")
        data += b"%d:%s" % (len(field), field)
    return content_digest(data)


def expanded(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with ``~`` replaced by the home in the variables that name a folder."""
    found = dict(environ)
    for name in _FOLDERS:
        if found.get(name, "").startswith("~"):
            try:
                found[name] = named_folder(name, found[name], environ)
            except InvalidRequest:  # without a home, nothing is found there
                pass
    return found


def _toolchain_key(given: Mapping[str, str], site_dirs: Sequence[str]) -> str:
    named = expanded(given)
    named.update((name, absolute(named[name])) for name in _FOLDERS & named.keys())
    values = [f"{name}={named.get(name, '')}" for name in _SEARCHED]
    path = given.get("PATH", "")
    chosen = [given[name] for name in _HOST_VARIABLES if name in given]
    hosts = [on_path(name, path) for name in (*chosen, *_HOST_COMPILERS)]
    host = next(filter(None, hosts), "")
    return versioned_digest(
        "search", [sys.prefix, *values, *site_dirs, on_path("nvcc", path), host]
    )


# The variables that the search for the toolchain reads besides PATH.
_SEARCHED = (*sorted(_FOLDERS), "CUDAHOSTCXX", "LD_LIBRARY_PATH", "NVCC_CCBIN")


def on_path(name: str, path: str) -> str:
    """Return the program's absolute path or "", like `shutil.which`, whose imports take 4 ms."""
    folders = path.split(os.pathsep) if path else []
    for program in [name] if "/" in name else [f"{folder or '.'}/{name}" for folder in folders]:
        if os.access(program, os.X_OK) and os.path.isfile(program):
            return absolute(program)
    return ""


def _package_folders() -> list[str]:
    """Return the entries of sys.path that the toolchain search may use."""
    # The script's folder is left out, so results of `rtcompile warm` are found. If none contains CuPy, an import
    # hook may find it through any entry, so all entries count.
    found = site_folders()
    has_cupy = any(has_folder(folder, "cupy") for folder in found)
    return found if has_cupy else import_folders()


def _working_directory() -> str:
    """Return the working directory; "" if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return ""
