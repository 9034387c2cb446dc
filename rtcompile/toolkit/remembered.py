"""The toolchain of this environment, searched for once and remembered in a small file.

While nothing that the search looked at has changed (some forty `stat`s), it is not repeated, and
neither cuda.pathfinder nor CuPy nor package metadata is touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rtcompile._version import __version__
from rtcompile.core.key import content_digest
from rtcompile.core.request import SearchDir
from rtcompile.settings import Settings
from rtcompile.toolkit.model import Library, Program, Toolchain

__all__ = ["current", "remember_build"]

# Every variable that the search reads; the catalogue is not imported to learn them.
_VARIABLES = (
    "CONDA_PREFIX",
    "CUDAHOSTCXX",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUTLASS_PATH",
    "LD_LIBRARY_PATH",
    "NVCC_APPEND_FLAGS",
    "NVCC_CCBIN",
    "NVCC_PREPEND_FLAGS",
    "PATH",
    "RTCOMPILE_CUTLASS_PATH",
)

Stamp = tuple[int, int] | None


class Known(NamedTuple):
    """An answer, and the state of what it depends on when it was found."""

    toolchain: Toolchain
    stamps: Mapping[str, Stamp]

    def holds(self) -> bool:
        """Is everything that the answer depends on as it was?"""
        return all(_stamp(path) == stamp for path, stamp in self.stamps.items())


_in_this_process: dict[str, Known] = {}


def current(settings: Settings | None = None) -> Toolchain:
    """Return the toolchain of this environment.

    Parameters
    ----------
    settings : Settings, optional
        Where the answer is remembered (``cache_dir``) and whether it may be (``cache_on_disk``).

    Returns
    -------
    Toolchain
        Never raises for what is missing: `Toolchain.problems` tells, and `require_nvrtc` and its
        like raise when the part is needed.
    """
    if sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64"):
        return _unsupported()
    settings = settings or Settings.from_environ()
    site_dirs = _site_dirs(sys.path)
    key = _key(site_dirs)
    known = _in_this_process.get(key)
    if known is None and settings.cache_on_disk:
        known = _read(_path(settings, key), key)
    if known is None or not known.holds():
        known = _search(site_dirs)
        if _may_write(settings):
            _write(_path(settings, key), key, known)
    _in_this_process[key] = known
    return known.toolchain


def _unsupported() -> Toolchain:
    import platform

    why = (
        f"rtcompile compiles on Linux x86-64 and aarch64; this is {platform.system()} "
        f"{platform.machine()}. Importing it works, compiling does not."
    )
    parts = ("nvrtc", "nvcc", "nvjitlink", "cudadevrt", "host_compiler")
    return Toolchain(missing=dict.fromkeys(parts, why), problems=(why,))


def remember_build(part: str, build: str, settings: Settings) -> None:
    """Keep a compiler's own word on its build, for this process and the next ones.

    Parameters
    ----------
    part : {"nvrtc", "nvcc"}
        A part of the toolchain that `current` returned last.
    build : str
        What the compiler says of itself.
    settings : Settings
        As for `current`.
    """
    key = _key(_site_dirs(sys.path))
    known = _in_this_process[key]
    compiler = dataclasses.replace(getattr(known.toolchain, part), build=build)
    toolchain = dataclasses.replace(known.toolchain, **{part: compiler})
    known = _in_this_process[key] = Known(toolchain, known.stamps)
    if _may_write(settings):
        _write(_path(settings, key), key, known)


def _site_dirs(sys_path: Sequence[str]) -> list[str]:
    """Return the entries of sys.path that packages are installed in.

    Not scripts' own folders: each would have an answer of its own, and every file saved there
    would change its time.
    """
    return [
        entry
        for entry in sys_path
        if os.path.basename(entry) in ("site-packages", "dist-packages")
        or os.path.isdir(os.path.join(entry, "nvidia"))
        or os.path.isdir(os.path.join(entry, "cupy"))
    ]


def _key(site_dirs: Sequence[str]) -> str:
    values = [f"{name}={_absolute(name, os.environ.get(name, ''))}" for name in _VARIABLES]
    return "\n".join([__version__, sys.prefix, *values, *site_dirs])


def _absolute(name: str, value: str) -> str:
    """Return the folder that a variable names: a relative one is another one in each project."""
    folder = name.endswith(("CUDA_PATH", "CUTLASS_PATH", "_HOME"))
    return os.path.abspath(value) if value and folder else value


def _path(settings: Settings, key: str) -> str:
    digest = content_digest(key.encode("utf-8", "surrogateescape"))
    return os.path.join(settings.cache_dir, "toolchains", f"{digest[:32]}.json")


def _search(site_dirs: Sequence[str]) -> Known:
    from rtcompile.toolkit.search import find

    toolchain = find(os.environ, [*site_dirs, *_editable_cupy(site_dirs)], prefix=sys.prefix)
    return Known(toolchain, {path: _stamp(path) for path in toolchain.depends})


def _editable_cupy(site_dirs: Sequence[str]) -> Sequence[str]:
    """Return where CuPy is if an import hook knows it and the folders do not. Does not import it."""
    if any(os.path.isdir(os.path.join(folder, "cupy")) for folder in site_dirs):
        return ()
    import importlib.util

    cupy = importlib.util.find_spec("cupy")
    return (os.path.dirname(os.path.dirname(cupy.origin)),) if cupy and cupy.origin else ()


def _stamp(path: str) -> Stamp:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


# --- the file ------------------------------------------------------------------------------------


def _read(path: str, key: str) -> Known | None:
    """Return what is remembered; None if there is nothing, or nothing to be trusted.

    The file names libraries that will be loaded: one that another user wrote is not believed.
    """
    import json  # 1.5 ms that an import alone does not pay

    try:
        with open(path, "rb") as file:
            stat = os.fstat(file.fileno())
            if stat.st_uid != os.geteuid() or stat.st_mode & 0o022:
                return None
            record = json.loads(file.read())
        if record["key"] != key:
            return None
        stamps = {name: tuple(stamp) if stamp else None for name, stamp in record["stamps"].items()}
        return Known(_from_json(record["toolchain"]), stamps)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _may_write(settings: Settings) -> bool:
    # Where compiling is forbidden nothing else is to appear on the disk either.
    return settings.cache_on_disk and settings.jit


def _write(path: str, key: str, known: Known) -> None:
    """Publish by rename: a reader sees the whole file or none. Without a place to write, nothing."""
    import json

    record = {
        "key": key,
        "stamps": known.stamps,
        "toolchain": dataclasses.asdict(known.toolchain),
    }
    temporary = f"{path}.{os.getpid()}-{threading.get_ident()}.tmp"
    folder = os.path.dirname(path)
    try:
        # makedirs gives its mode to the last folder only, and both are ours alone.
        os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
        os.makedirs(folder, mode=0o700, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _from_json(fields: dict[str, Any]) -> Toolchain:
    def value(kind: Any, name: str) -> Any:
        return kind(**fields[name]) if fields[name] else None

    fields["nvrtc"] = value(_library, "nvrtc")
    fields["nvjitlink"] = value(_library, "nvjitlink")
    fields["nvcc"] = value(Program, "nvcc")
    fields["search"] = tuple(SearchDir(**directory) for directory in fields["search"])
    fields["problems"] = tuple(fields["problems"])
    fields["depends"] = tuple(fields["depends"])
    return Toolchain(**fields)


def _library(path: str, version: str, preload: list[str], build: str) -> Library:
    return Library(path, version, tuple(preload), build)
