"""What of a process's surroundings the results of builds depend on: variables and folders.

This module imports only what a hit needs.
"""

from __future__ import annotations

import os
import sys

from rtcompile._version import __version__
from rtcompile.storage import places
from rtcompile.storage.digest import content_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ENVIRONMENT", "Surroundings", "digest"]

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
_FULL_ROAD = ("CUPY_CACHE_IN_MEMORY", "RTCOMPILE_LOG", "RTCOMPILE_TRACE")
# With one of these set, what has no answer may still need no compiler, or not NVRTC.
_BY_OTHERS = (
    "NVCC_APPEND_FLAGS",
    "NVCC_PREPEND_FLAGS",
    "RTCOMPILE_FALLBACK",
    "RTCOMPILE_JIT",
    "RTCOMPILE_REMOTE",
)
# With one of these set, a request's words ask bundles for another build.
_REQUESTS = ("CUPY_COMPILE_WITH_PTX", "CUPY_CUDA_COMPILE_WITH_DEBUG", "RTCOMPILE_FALLBACK")
_OURS = "RTCOMPILE_"
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

_NAMES = tuple(name.encode() for name in ENVIRONMENT)


class Surroundings:
    """The environment variables and sys.path at one time, and what follows from them."""

    __slots__ = (
        "_changes_requests",
        "_values",
        "all_variables",
        "bundles",
        "by_others",
        "folder",
        "folders",
        "forbidden",
        "full_road",
        "key",
        "sys_path",
        "variables",
        "where",
    )

    def __init__(self, variables: tuple[bytes | None, ...], sys_path: list[str]) -> None:
        self.variables = variables
        self._values = values = dict(zip(ENVIRONMENT, variables, strict=True))
        self.all_variables = dict(_all_variables() or {})
        self.sys_path = sys_path[:]
        self.folder = places.cache_dir(os.environ)
        self.folders = _package_folders()
        self.where = _where() if self._is_relative(sys_path) else None
        self.key = digest("environment", self._words())
        self.full_road = self._full_road() or self.where == b""
        self.by_others = any(values[name] for name in _BY_OTHERS)
        self.forbidden = values["RTCOMPILE_JIT"] == b"0"
        paths = os.fsdecode(values["RTCOMPILE_BUNDLES"] or b"").split(os.pathsep)
        self.bundles = [path for path in paths if path]
        self._changes_requests: bool | None = None

    def _words(self) -> list[bytes]:
        """Return what the results of builds depend on, besides what each was given."""
        words = [
            b"" if value is None or _changes_nothing(name, value) else value
            for name, value in self._values.items()
        ]
        words += [os.fsencode(path) for path in (sys.prefix, *self.folders)]
        here = self.where if self._is_relative(self.folders) else None
        return [*words, here or b""]

    def _is_relative(self, folders_of_packages: Sequence[str]) -> bool:
        """Say whether packages or programs are searched for in the working directory too."""
        folders = [os.fsencode(path) for path in folders_of_packages]
        for name in _SEARCHED:
            said = self._values[name]
            folders += said.split(b":") if said else []
        return not all(path[:1] == b"/" for path in folders)

    def _full_road(self) -> bool:
        values = self._values
        if any(values[name] not in (None, b"", b"0") for name in _FULL_ROAD):
            return True
        return any((path := values[name]) and path[:1] not in b"/~" for name in _PLACES)

    def changes_requests(self) -> bool:
        """Say whether variables change what is asked of bundles, or have values that are errors."""
        if self._changes_requests is None:
            values = self._values
            self._changes_requests = any(values[name] for name in _REQUESTS)
            if any(
                value and name.startswith(_OURS) and not _changes_nothing(name, value)
                for name, value in values.items()
            ):
                from rtcompile.errors import InvalidRequest
                from rtcompile.settings import Settings

                try:
                    Settings.from_environ()
                except InvalidRequest:
                    self._changes_requests = True
        return self._changes_requests

    def has_same_folders(self) -> bool:
        """Say whether the folders of packages are those of its key."""
        return self.folders == _package_folders()

    def are_these(self) -> bool:
        """Say whether they are as they were, but for folders: see `has_same_folders`."""
        return (
            # All variables at once, a quarter of a microsecond; the deciding ones only where some
            # differ.
            (self.all_variables == _all_variables() or variables() == self.variables)
            and self.sys_path == sys.path
            and (self.where is None or self.where == _where())
        )


def _all_variables() -> dict[bytes, bytes] | None:
    """Return the process's variables as ``os.environ`` keeps them, which is not documented."""
    return getattr(os.environ, "_data", None)


def variables() -> tuple[bytes | None, ...]:
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
    has_cupy = any(places.has_folder(folder, "cupy") for folder in folders)
    return folders if has_cupy else sys.path[:]


def _where() -> bytes:
    """Return the working directory; nothing where it was removed."""
    try:
        return os.getcwdb()
    except OSError:
        return b""


def digest(kind: str, words: Sequence[bytes]) -> str:
    """Return the digest of some words of a kind, for this version of rtcompile."""
    parts = (kind.encode(), __version__.encode(), *words)
    return content_digest(b"".join([b"%d:%s" % (len(part), part) for part in parts]))
