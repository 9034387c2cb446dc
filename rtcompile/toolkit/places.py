"""The places that may hold a toolkit, and the search for a part in one of them."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rtcompile.toolkit import versions
from rtcompile.toolkit.catalogue import CUDA_ENVIRONMENT, PARTS, Part
from rtcompile.toolkit.programs import which

_PART = {part.name: part for part in PARTS}


@dataclass(frozen=True)
class Surroundings:
    """Everything that the search depends on; `prefix` is ``sys.prefix``, this Python's folder."""

    environ: Mapping[str, str]
    site_dirs: tuple[str, ...]
    usual_roots: tuple[str, ...]
    targets: tuple[str, ...]
    prefix: str = ""


@dataclass(frozen=True)
class Place:
    """A folder that may hold a toolkit, laid out in one of the known ways."""

    root: str
    layout: str
    found_via: str
    targets: tuple[str, ...]
    installed: Mapping[str, str] = field(repr=False)

    def directories(self, part: Part) -> Iterator[str]:
        for relative in part.layouts.get(self.layout, ())[1:]:
            for target in self.targets if "{target}" in relative else ("",):
                yield os.path.join(self.root, relative.format(target=target))

    def look(self, part: Part) -> Hit | None:
        """Return where this place has `part`, or None."""
        for directory in self.directories(part):
            if _has_host_headers(directory):
                continue
            for marker in part.markers:
                path = os.path.join(directory, marker)
                if os.path.isfile(path):
                    package = self.installed.get(part.package(self.layout), "")
                    version = versions.of_part(part, directory, path, package)
                    return Hit(part, directory, path, version or self._own_version(part), self)
        return None

    def _own_version(self, part: Part) -> str:
        """Return the runtime headers' version, for a part that states none; wheels can differ."""
        if self.layout not in ("toolkit", "conda") or part.name in ("cudart", "nvcc"):
            return ""
        cudart = self.look(_PART["cudart"])
        return cudart.version if cudart else ""


@dataclass(frozen=True)
class Hit:
    """A part found in a place. `version` is empty where no file states it."""

    part: Part
    directory: str
    path: str
    version: str
    place: Place


def _has_host_headers(directory: str) -> bool:
    # Debian installs nvidia-cuda-toolkit into /usr/include. Passed as -I, that folder would give
    # NVRTC the host's libc and libstdc++, which it cannot compile.
    return os.path.exists(os.path.join(directory, "stdlib.h"))


# --- find steps: places, in order of preference --------------------------------------------------


def in_site_packages(where: Surroundings) -> Iterator[Place]:
    """Wheels in this environment, `pip install --target` folders on sys.path included."""
    for site_dir in where.site_dirs:
        if os.path.isdir(os.path.join(site_dir, "nvidia")):
            installed = versions.of_wheels(site_dir)
            for layout in ("wheels13", "wheels12"):
                yield Place(site_dir, layout, "site-packages", where.targets, installed)


def in_conda(where: Surroundings) -> Iterator[Place]:
    """Yield the conda environment of this Python, a notebook's kernel, then the active one."""
    for prefix in conda_prefixes(where):
        yield Place(prefix, "conda", "conda", where.targets, versions.of_conda(prefix))


def conda_prefixes(where: Surroundings) -> list[str]:
    """Return the folders of the conda environments that are looked into, in order."""
    own = [where.prefix] if os.path.isdir(os.path.join(where.prefix, "conda-meta")) else []
    return [*own, *filter(None, [where.environ.get("CONDA_PREFIX")])]


def in_cuda_path(where: Surroundings) -> Iterator[Place]:
    """The toolkit that the user's variables name."""
    for variable in CUDA_ENVIRONMENT:
        root = where.environ.get(variable)
        if root:
            yield _toolkit(root, variable, where)


def in_usual_roots(where: Surroundings) -> Iterator[Place]:
    """Where installers put toolkits, the newest first."""
    for pattern in where.usual_roots:
        for root in sorted(glob.glob(pattern), key=_by_numbers, reverse=True):
            yield _toolkit(root, "system", where)


def beside_nvcc(where: Surroundings) -> Iterator[Place]:
    """The toolkit around the nvcc on PATH."""
    nvcc = which("nvcc", where.environ)
    if nvcc:
        yield _toolkit(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "PATH", where)


def by_pathfinder(where: Surroundings) -> Iterator[Place]:
    """Places that only cuda.pathfinder knows. It finds headers without loading a library here."""
    import warnings

    from cuda.pathfinder import find_nvidia_header_directory

    try:
        with (
            warnings.catch_warnings()
        ):  # it warns where CUDA_PATH and CUDA_HOME differ; both are searched
            warnings.simplefilter("ignore")
            include = find_nvidia_header_directory("cudart")
    except (RuntimeError, OSError):  # its child process, which queries the loader, did not start
        return
    if include is not None:
        yield _toolkit(os.path.dirname(include), "cuda.pathfinder", where)


Step = Callable[[Surroundings], Iterable[Place]]
STEPS: tuple[Step, ...] = (in_site_packages, in_conda, in_cuda_path, beside_nvcc, in_usual_roots)
LAST_STEPS: tuple[Step, ...] = (by_pathfinder,)


def _toolkit(root: str, found_via: str, where: Surroundings) -> Place:
    root = os.path.abspath(root)
    return Place(root, "toolkit", found_via, where.targets, versions.of_toolkit(root))


def _by_numbers(path: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", path)]


# --- what CuPy adds ------------------------------------------------------------------------------


def cupy_major(where: Surroundings) -> int | None:
    """Return the major version of the CUDA that the installed CuPy is for, if its name says so."""
    for site_dir in where.site_dirs:
        for name in versions.of_wheels(site_dir):
            match = re.fullmatch(r"cupy-cuda(\d+)x", name)
            if match:
                return int(match[1])
    return None


def cupy_cccl(where: Surroundings) -> str | None:
    """Return the folder of the CCCL that CuPy bundles, to be used where the set has none."""
    for site_dir in where.site_dirs:
        root = os.path.join(site_dir, "cupy/_core/include/cupy/_cccl")
        if os.path.isfile(os.path.join(root, "libcudacxx", _PART["cccl"].markers[0])):
            return root
    return None
