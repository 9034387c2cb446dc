"""The toolchain of this environment, searched for once and remembered in a small file.

The search is repeated only when something that it looked at has changed, which some forty `stat`s
tell without cuda.pathfinder, CuPy or package metadata. Of PATH only the programs count that it
leads to, so that a shell, a service and a scheduler share one result where those are the same.
"""

from __future__ import annotations

import contextlib
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
from rtcompile.storage import places
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

# The search takes as host compiler the first that it finds on PATH: of those that these variables
# name, then of the usual names.
_HOST_VARIABLES = ("NVCC_CCBIN", "CUDAHOSTCXX")
_HOST_COMPILERS = ("g++", "c++")

_MOST_REMEMBERED = 32  # files
_DOUBT_SECONDS = 60.0

Stamp = tuple[int, int] | None


class Known(NamedTuple):
    """A result of the search, and the state of the files that it depends on."""

    toolchain: Toolchain
    stamps: Mapping[str, Stamp]
    until: float = float("inf")  # of the monotonic clock

    def holds(self) -> bool:
        """Is everything that the result depends on unchanged?"""
        return time.monotonic() < self.until and all(
            _stamp(path) == stamp for path, stamp in self.stamps.items()
        )


_in_this_process: dict[tuple[str, str], Known] = {}


def current(settings: Settings | None = None) -> Toolchain:
    """Return the toolchain of this environment.

    Parameters
    ----------
    settings : Settings, optional
        Where the result is remembered (``cache_dir``) and whether it may be (``cache_on_disk``).

    Returns
    -------
    Toolchain
        A missing part raises no error here: `Toolchain.problems` lists it, and `require_nvrtc` and
        its like raise when the part is needed.
    """
    if sys.platform != "linux" or os.uname().machine not in ("x86_64", "aarch64"):
        return _unsupported()
    settings = settings or Settings.from_environ()
    site_dirs = places.site_folders(sys.path)
    here = _here(site_dirs)
    known = _in_this_process.get(here)
    if known is not None and known.holds():
        return known.toolchain  # not set again: another thread may have added a compiler's build
    if known is None and settings.cache_on_disk:
        known = _read(settings, _key(here))
    if known is None or not known.holds():
        known = _search(site_dirs, settings)
        _write(settings, _key(here), known)
    _in_this_process[here] = known
    nvrtc = known.toolchain.nvrtc
    if nvrtc is not None and nvrtc.architectures:
        from rtcompile.core import arch as archs

        archs.learn(nvrtc.version_pair, nvrtc.architectures)
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
    """Remember the build that a compiler reported of itself, for this process and later ones.

    Parameters
    ----------
    part : {"nvrtc", "nvcc"}
        A part of the toolchain that `current` returned last.
    build : str
        The build, as the compiler reports it.
    settings : Settings
        As for `current`.
    """
    here = _here(places.site_folders(sys.path))
    known = _in_this_process.get(here)
    if known is None:  # the environment was changed while the compiler ran
        return
    compiler = getattr(known.toolchain, part)._replace(build=build)
    toolchain = known.toolchain._replace(**{part: compiler})
    known = _in_this_process[here] = known._replace(toolchain=toolchain)
    _write(settings, _key(here), known)


def _here(site_dirs: Sequence[str]) -> tuple[str, str]:
    """Return what the result depends on besides the disk: variables and folders, and PATH."""
    values = [f"{name}={_absolute(name, os.environ.get(name, ''))}" for name in _VARIABLES]
    return "\n".join([__version__, sys.prefix, *values, *site_dirs]), os.environ.get("PATH", "")


def _absolute(name: str, value: str) -> str:
    """Return the absolute path of the folder that a variable names."""
    folder = name.endswith(("_PATH", "_HOME", "_PREFIX")) and name != "LD_LIBRARY_PATH"
    return places.absolute(value) if value and folder else value


def _key(here: tuple[str, str]) -> str:
    """Return the file's name; of PATH only the programs that it leads to go into it."""
    variables, path = here
    named = filter(None, (os.environ.get(name) for name in _HOST_VARIABLES))
    hosts = (_on_path(name, path) for name in (*named, *_HOST_COMPILERS))
    text = "\n".join([variables, _on_path("nvcc", path), next(filter(None, hosts), "")])
    return content_digest(text.encode("utf-8", "surrogateescape"))


def _on_path(name: str, path: str) -> str:
    """Return the program's path, like `shutil.which`, whose imports take 4 ms."""
    for folder in path.split(os.pathsep) if "/" not in name else [""]:
        program = f"{folder or '.'}/{name}" if "/" not in name else name
        if os.access(program, os.X_OK) and os.path.isfile(program):
            return os.path.abspath(program)
    return ""


def _search(site_dirs: Sequence[str], settings: Settings) -> Known:
    from rtcompile.core import arch as archs
    from rtcompile.toolkit.bundled import unpack
    from rtcompile.toolkit.programs import architectures
    from rtcompile.toolkit.search import find

    toolchain = find(
        os.environ,
        [*site_dirs, *_editable_cupy(site_dirs)],
        prefix=sys.prefix,
        unpack=lambda nvrtc: unpack(nvrtc, settings),
    )
    nvrtc = toolchain.nvrtc
    if nvrtc is not None and nvrtc.version_pair > archs.NEWEST_MEASURED:
        nvrtc = nvrtc._replace(architectures=architectures(nvrtc, os.environ))
        toolchain = toolchain._replace(nvrtc=nvrtc)
    known = Known(toolchain, {path: _stamp(path) for path in toolchain.depends})
    # A program that did not answer may do so next time, when the disk is faster or memory is free.
    return known._replace(until=time.monotonic() + _DOUBT_SECONDS) if toolchain.doubts else known


def _editable_cupy(site_dirs: Sequence[str]) -> Sequence[str]:
    """Return the folder of a CuPy that only an import hook can find. Does not import it."""
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
    """Return the remembered result; None if there is none, or none that may be trusted.

    The file names libraries that will be loaded, so `trusted` checks its owner, and a digest its
    content.
    """
    import json  # takes 1.5 ms, which `import rtcompile` alone should not cost

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
    if not _unpacked_is_there(known.toolchain, settings):
        return None
    return known._replace(stamps={**stamps, **_stamps_of_path(known.toolchain)})


def _unpacked_is_there(toolchain: Toolchain, settings: Settings) -> bool:
    """Note the use of NVRTC's own headers, if they are used; say whether they may be."""
    if "NVRTC" not in toolchain.found_via.values():
        return True
    from rtcompile.cache import bundled

    top = f"{settings.cache_dir}/{bundled.KIND}/"
    names = [d.path.removeprefix(top) for d in toolchain.search if d.path.startswith(top)]
    return bool(names) and bundled.find(settings.cache_dir, names[0].split("/")[0]) is not None


def _stamps_of_path(toolchain: Toolchain) -> dict[str, Stamp]:
    """Return the state of the folders on PATH in which a missing program may be installed."""
    if not {"nvcc", "host_compiler"} & set(toolchain.missing):
        return {}
    return {folder: _stamp(folder) for folder in _path_folders()}


def _path_folders() -> list[str]:
    return os.environ.get("PATH", "").split(os.pathsep)


def _write(settings: Settings, key: str, known: Known) -> None:
    """Write the result by rename, so that a reader sees a whole file or none.

    Nothing is written where there is no writable folder, or where RTCOMPILE_JIT=0 forbids
    compiling.
    """
    if known.toolchain.doubts or not (settings.cache_on_disk and settings.jit):
        return
    import json

    # Each process checks the folders of its own PATH; only those that hold a toolkit are recorded.
    apart = {folder for folder in _path_folders() if os.path.dirname(folder) not in known.stamps}
    stamps = {path: stamp for path, stamp in known.stamps.items() if path not in apart}
    record = {"stamps": stamps, "toolchain": _as_json(known.toolchain)}
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


def _as_json(toolchain: Toolchain) -> dict[str, Any]:
    fields = toolchain._asdict()
    for name in ("nvrtc", "nvjitlink", "nvcc"):
        fields[name] = fields[name] and fields[name]._asdict()
    fields["search"] = [directory._asdict() for directory in toolchain.search]
    return {
        name: dict(value) if isinstance(value, Mapping) else value for name, value in fields.items()
    }


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


def _library(
    path: str, version: str, preload: list[str], build: str, architectures: list[int]
) -> Library:
    return Library(path, version, tuple(preload), build, tuple(architectures))
