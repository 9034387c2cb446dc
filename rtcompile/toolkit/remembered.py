"""The toolchain of this environment, searched for once and remembered in a small file.

While nothing that the search looked at has changed (some forty `stat`s), it is not repeated, and
neither cuda.pathfinder nor CuPy nor package metadata is touched. What counts of PATH is which
programs it leads to: another shell, a service and a scheduler have one answer where those are the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rtcompile._version import __version__
from rtcompile.cache import files
from rtcompile.cache.folder import Folder
from rtcompile.core.request import SearchDir
from rtcompile.settings import Settings
from rtcompile.storage.digest import content_digest
from rtcompile.toolkit.model import Library, Program, Toolchain

__all__ = ["current", "remember_build"]

# Every variable that the search reads besides PATH; the catalogue is not imported to learn them.
_VARIABLES = (
    "CONDA_PREFIX",
    "CUDAHOSTCXX",
    "CUDA_HOME",
    "CUDA_PATH",
    "CUTLASS_PATH",
    "LD_LIBRARY_PATH",
    "NVCC_CCBIN",
    "RTCOMPILE_CUTLASS_PATH",
)

# What the search takes for the host compiler, from PATH, is the first of those that these variables
# name and these.
_HOST_VARIABLES = ("NVCC_CCBIN", "CUDAHOSTCXX")
_HOST_COMPILERS = ("g++", "c++")

_MOST_REMEMBERED = 32  # files
_DOUBT_SECONDS = 60.0

Stamp = tuple[int, int] | None


class Known(NamedTuple):
    """An answer, and the state of what it depends on when it was found."""

    toolchain: Toolchain
    stamps: Mapping[str, Stamp]
    until: float = float("inf")  # of the monotonic clock

    def holds(self) -> bool:
        """Is everything that the answer depends on as it was?"""
        return time.monotonic() < self.until and all(
            _stamp(path) == stamp for path, stamp in self.stamps.items()
        )


_in_this_process: dict[tuple[str, str], Known] = {}


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
    here = _here(site_dirs)
    known = _in_this_process.get(here)
    if known is None and settings.cache_on_disk:
        known = _read(settings, _key(here))
    if known is None or not known.holds():
        known = _search(site_dirs)
        _write(settings, _key(here), known)
    _in_this_process[here] = known
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
    here = _here(_site_dirs(sys.path))
    known = _in_this_process[here]
    compiler = dataclasses.replace(getattr(known.toolchain, part), build=build)
    toolchain = dataclasses.replace(known.toolchain, **{part: compiler})
    known = _in_this_process[here] = known._replace(toolchain=toolchain)
    _write(settings, _key(here), known)


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


def _here(site_dirs: Sequence[str]) -> tuple[str, str]:
    """Return what the answer hangs on before the disk is looked at: variables and folders, and PATH."""
    values = [f"{name}={_absolute(name, os.environ.get(name, ''))}" for name in _VARIABLES]
    return "\n".join([__version__, sys.prefix, *values, *site_dirs]), os.environ.get("PATH", "")


def _absolute(name: str, value: str) -> str:
    """Return the folder that a variable names: a relative one is another one in each project."""
    folder = name.endswith(("_PATH", "_HOME", "_PREFIX")) and name != "LD_LIBRARY_PATH"
    return os.path.abspath(value) if value and folder else value


def _key(here: tuple[str, str]) -> str:
    """Return the name of the file: of PATH the programs that it leads to count, and nothing else."""
    variables, path = here
    named = filter(None, (os.environ.get(name) for name in _HOST_VARIABLES))
    hosts = (_on_path(name, path) for name in (*named, *_HOST_COMPILERS))
    text = "\n".join([variables, _on_path("nvcc", path), next(filter(None, hosts), "")])
    return content_digest(text.encode("utf-8", "surrogateescape"))


def _on_path(name: str, path: str) -> str:
    """Return where PATH leads to; `shutil.which` would say the same after 4 ms of imports."""
    for folder in path.split(os.pathsep) if "/" not in name else [""]:
        program = f"{folder or '.'}/{name}" if "/" not in name else name
        if os.access(program, os.X_OK) and os.path.isfile(program):
            return os.path.abspath(program)
    return ""


def _search(site_dirs: Sequence[str]) -> Known:
    from rtcompile.toolkit.search import find

    toolchain = find(os.environ, [*site_dirs, *_editable_cupy(site_dirs)], prefix=sys.prefix)
    known = Known(toolchain, {path: _stamp(path) for path in toolchain.depends})
    # A program that did not answer may do so the next time: memory was short, a disk was slow.
    return known._replace(until=time.monotonic() + _DOUBT_SECONDS) if toolchain.doubts else known


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


def _read(settings: Settings, key: str) -> Known | None:
    """Return what is remembered; None if there is nothing, or nothing to be trusted.

    The file names libraries that will be loaded: by `trusted`'s rule, and by its digest.
    """
    import json  # 1.5 ms that an import alone does not pay

    folder = Folder(settings.cache_dir, writable=settings.jit)
    data = folder.read("toolchains", key)
    fields = files.unseal("toolchain", key, data) if data is not None else None
    if not fields:
        if data is not None:
            folder.discard("toolchains", key)
        return None
    try:
        record = json.loads(fields[0])
        stamps = {name: tuple(stamp) if stamp else None for name, stamp in record["stamps"].items()}
        known = Known(_from_json(record["toolchain"]), stamps)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return known._replace(stamps={**stamps, **_stamps_of_path(known.toolchain)})


def _stamps_of_path(toolchain: Toolchain) -> dict[str, Stamp]:
    """Return the state of the folders of PATH where a program is missing that may come to be there."""
    if not {"nvcc", "host_compiler"} & set(toolchain.missing):
        return {}
    return {folder: _stamp(folder) for folder in _path_folders()}


def _path_folders() -> list[str]:
    return os.environ.get("PATH", "").split(os.pathsep)


def _write(settings: Settings, key: str, known: Known) -> None:
    """Publish by rename: a reader sees the whole file or none. Without a place to write, nothing.

    Where compiling is forbidden nothing else is to appear on the disk either.
    """
    if known.toolchain.doubts or not (settings.cache_on_disk and settings.jit):
        return
    import json

    # Of PATH's folders each process looks at its own; one that a toolkit is in counts for all.
    apart = {folder for folder in _path_folders() if os.path.dirname(folder) not in known.stamps}
    stamps = {path: stamp for path, stamp in known.stamps.items() if path not in apart}
    record = {"stamps": stamps, "toolchain": dataclasses.asdict(known.toolchain)}
    folder = Folder(settings.cache_dir)
    with contextlib.suppress(OSError):
        folder.prepare()
        data = json.dumps(record).encode("utf-8", "surrogateescape")
        folder.publish("toolchains", key, files.seal("toolchain", key, [data]))
        _forget_oldest(folder)


def _forget_oldest(folder: Folder) -> None:
    known = sorted(folder.listing("toolchains"), key=lambda found: -found[1].st_mtime)
    for name, _ in known[_MOST_REMEMBERED:]:
        folder.discard("toolchains", name)


def _from_json(fields: dict[str, Any]) -> Toolchain:
    def value(kind: Any, name: str) -> Any:
        return kind(**fields[name]) if fields[name] else None

    fields["nvrtc"] = value(_library, "nvrtc")
    fields["nvjitlink"] = value(_library, "nvjitlink")
    fields["nvcc"] = value(Program, "nvcc")
    fields["search"] = tuple(SearchDir(**directory) for directory in fields["search"])
    fields["problems"] = tuple(fields["problems"])
    fields["depends"] = tuple(fields["depends"])
    fields["doubts"] = tuple(fields["doubts"])
    return Toolchain(**fields)


def _library(path: str, version: str, preload: list[str], build: str) -> Library:
    return Library(path, version, tuple(preload), build)
