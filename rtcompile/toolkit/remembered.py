"""The toolchain of this environment, searched for once and remembered in a small file.

While nothing that the search looked at has changed (some forty `stat`s), it is not repeated, and
neither cuda.pathfinder nor CuPy nor package metadata is touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import sys
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from rtcompile._version import __version__
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

_UNSUPPORTED = (
    "rtcompile compiles on Linux x86-64 and aarch64; this is {system} {machine}. "
    "Importing it works, compiling does not."
)

Stamp = tuple[int, int] | None

# By key: what the search depended on, and what it found.
_in_this_process: dict[str, tuple[list[tuple[str, Stamp]], Toolchain]] = {}


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
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        why = _UNSUPPORTED.format(system=platform.system(), machine=platform.machine())
        return Toolchain(
            missing=dict.fromkeys(("nvrtc", "nvcc", "nvjitlink"), why), problems=(why,)
        )
    settings = settings or Settings.from_environ()
    key = _key()
    known = _in_this_process.get(key)
    if known is not None and _unchanged(known[0]):
        return known[1]
    path = os.path.join(settings.cache_dir, "toolchains", f"{_digest(key)}.json")
    known = _read(path, key) if settings.cache_on_disk else None
    if known is None or not _unchanged(known[0]):
        known = _search()
        if settings.cache_on_disk:
            _write(path, key, known)
    _in_this_process[key] = known
    return known[1]


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
    key = _key()
    stamps, toolchain = _in_this_process[key]
    compiler = dataclasses.replace(getattr(toolchain, part), build=build)
    known = stamps, dataclasses.replace(toolchain, **{part: compiler})
    _in_this_process[key] = known
    if settings.cache_on_disk:
        _write(os.path.join(settings.cache_dir, "toolchains", f"{_digest(key)}.json"), key, known)


def _key() -> str:
    values = [f"{name}={os.environ.get(name, '')}" for name in _VARIABLES]
    return "\n".join([__version__, sys.prefix, *values, *sys.path])


def _digest(key: str) -> str:
    return blake2b(key.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


def _search() -> tuple[list[tuple[str, Stamp]], Toolchain]:
    from rtcompile.toolkit.search import find

    toolchain = find(os.environ, _site_dirs(sys.path))
    return [(path, _stamp(path)) for path in toolchain.depends], toolchain


def _site_dirs(sys_path: Sequence[str]) -> list[str]:
    """Return the entries of sys.path that packages are installed in.

    Scripts' own folders are left out: every saved file would change their time.
    """
    installed = [
        entry
        for entry in sys_path
        if os.path.basename(entry) in ("site-packages", "dist-packages")
        or os.path.isdir(os.path.join(entry, "nvidia"))
        or os.path.isdir(os.path.join(entry, "cupy"))
    ]
    if not any(os.path.isdir(os.path.join(entry, "cupy")) for entry in installed):
        import importlib.util

        cupy = importlib.util.find_spec("cupy")  # an editable install; not imported
        if cupy is not None and cupy.origin:
            installed.append(os.path.dirname(os.path.dirname(cupy.origin)))
    return installed


def _stamp(path: str) -> Stamp:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _unchanged(stamps: Sequence[tuple[str, Stamp]]) -> bool:
    return all(_stamp(path) == stamp for path, stamp in stamps)


def _read(path: str, key: str) -> tuple[list[tuple[str, Stamp]], Toolchain] | None:
    """Return what is remembered; None if there is nothing, or nothing that can be understood."""
    try:
        with open(path, "rb") as file:
            record = json.loads(file.read())
        if record["key"] != key:
            return None
        stamps = [(name, tuple(stamp) if stamp else None) for name, stamp in record["stamps"]]
        return stamps, _from_json(record["toolchain"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _write(path: str, key: str, known: tuple[list[tuple[str, Stamp]], Toolchain]) -> None:
    """Publish by rename: a reader sees the whole file or none. Without a place to write, nothing."""
    stamps, toolchain = known
    record = {"key": key, "stamps": stamps, "toolchain": dataclasses.asdict(toolchain)}
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(record, file)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def _from_json(fields: dict[str, Any]) -> Toolchain:
    def of(kind: Any, name: str) -> Any:
        return kind(**fields[name]) if fields[name] else None

    fields["nvrtc"] = of(_library, "nvrtc")
    fields["nvjitlink"] = of(_library, "nvjitlink")
    fields["nvcc"] = of(Program, "nvcc")
    fields["search"] = tuple(SearchDir(**directory) for directory in fields["search"])
    fields["problems"] = tuple(fields["problems"])
    fields["depends"] = tuple(fields["depends"])
    return Toolchain(**fields)


def _library(path: str, version: str, preload: list[str], build: str) -> Library:
    return Library(path, version, tuple(preload), build)
