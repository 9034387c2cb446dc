"""Find one consistent toolkit: every place is looked at as a whole, parts are never mixed.

The order of places is cuda.pathfinder's: this environment's wheels, conda, CUDA_PATH/CUDA_HOME,
the system. cuda.pathfinder answers part by part, each from the first place that has it, which is
how NVRTC of one version ends up with headers of another; so the places are ours to walk, and it is
asked last, for what it knows and we do not (the loader's own paths, layouts newer than ours).

The first place with a complete set wins. A part that a place lacks, or has in another version, is
taken from a later place of the same major.minor. If nothing is complete, the place that lacks
least wins and `Toolchain.problems` says what to install. Where CuPy is installed, a CUDA of its
major version goes first: its driver may not load the other's code.
"""

from __future__ import annotations

import glob
import os
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rtcompile.toolkit import versions
from rtcompile.toolkit.catalogue import CUDA_ENVIRONMENT, PARTS, TARGETS, USUAL_ROOTS, Part
from rtcompile.toolkit.model import Toolchain, version_pair
from rtcompile.toolkit.programs import which

__all__ = ["Hit", "Place", "Surroundings", "Toolset", "find"]


@dataclass(frozen=True)
class Surroundings:
    """What the search depends on, so that it can be pointed at a made-up tree."""

    environ: Mapping[str, str]
    site_dirs: tuple[str, ...]
    usual_roots: tuple[str, ...]
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Place:
    """A folder that may hold a toolkit, laid out in one of the known ways."""

    root: str
    layout: str
    found_via: str
    targets: tuple[str, ...]
    installed: Mapping[str, str] = field(repr=False)

    def directories(self, part: Part) -> Iterator[str]:
        for relative in part.dirs.get(self.layout, ()):
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
                    package = self.installed.get(part.packages.get(self.layout, ""), "")
                    version = versions.of_part(part, directory, path, package)
                    return Hit(part, directory, path, version, self)
        return None


@dataclass(frozen=True)
class Hit:
    """A part in a place. `version` is empty where nothing states it."""

    part: Part
    directory: str
    path: str
    version: str
    place: Place

    def goes_with(self, nvrtc: Hit) -> bool:
        """Is it of NVRTC's major.minor? Unstated versions are believed within one place."""
        if self.part.name == "curand":  # numbered apart from CUDA: 10.3 in 12.9 and in 12.6
            return self.place == nvrtc.place or self.place.layout == nvrtc.place.layout
        if not self.version:
            return self.place == nvrtc.place
        return version_pair(self.version) == version_pair(nvrtc.version)


def _has_host_headers(directory: str) -> bool:
    # Debian's nvidia-cuda-toolkit lives in /usr/include: as an -I it would give NVRTC the host's
    # libc and libstdc++, which it cannot compile.
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
    """The active conda environment."""
    prefix = where.environ.get("CONDA_PREFIX")
    if prefix:
        yield Place(prefix, "conda", "conda", where.targets, versions.of_conda(prefix))


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
    """Whatever else cuda.pathfinder knows. It loads nothing into this process to find headers."""
    import warnings

    from cuda.pathfinder import find_nvidia_header_directory

    try:
        with warnings.catch_warnings():  # of CUDA_PATH and CUDA_HOME that differ: both are places
            warnings.simplefilter("ignore")
            include = find_nvidia_header_directory("cudart")
    except (RuntimeError, OSError):  # its child process, which asks the loader, did not start
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


# --- the choice: one set -------------------------------------------------------------------------


@dataclass(frozen=True)
class Toolset:
    """NVRTC of one place and every part that goes with it."""

    nvrtc: Hit
    hits: Mapping[str, Hit]
    rejected: Mapping[str, Hit]  # parts that are only there in another version

    def lacking(self) -> int:
        return sum(part.required and part.name not in self.hits for part in PARTS)


def _toolsets(places: Sequence[Place]) -> Iterator[Toolset]:
    for place in places:
        nvrtc = place.look(PARTS[0])
        if nvrtc is None or not nvrtc.version:
            continue
        hits = {"nvrtc": nvrtc}
        rejected: dict[str, Hit] = {}
        for part in PARTS[1:]:
            for other in (place, *(p for p in places if p != place)):
                hit = other.look(part)
                if hit is None:
                    continue
                if hit.goes_with(nvrtc):
                    hits[part.name] = hit
                    rejected.pop(part.name, None)
                    break
                rejected.setdefault(part.name, hit)
        yield Toolset(nvrtc, hits, rejected)


def _choose(places: Sequence[Place], major: int | None) -> Toolset | None:
    def rank(found: Toolset) -> tuple[bool, int]:
        other_major = major is not None and version_pair(found.nvrtc.version)[0] != major
        return other_major, found.lacking()

    return min(_toolsets(places), key=rank, default=None)


def find(
    environ: Mapping[str, str],
    site_dirs: Sequence[str],
    *,
    usual_roots: Sequence[str] = USUAL_ROOTS,
    machine: str | None = None,
    shims: str | None = None,
    last_steps: Sequence[Step] = LAST_STEPS,
) -> Toolchain:
    """Search, given everything the answer depends on.

    Parameters
    ----------
    environ : mapping of str to str
        The environment variables.
    site_dirs : sequence of str
        Directories that wheels are installed in, in order of preference.
    usual_roots : sequence of str
        Patterns of folders where toolkits are installed.
    machine : str, optional
        ``"x86_64"`` or ``"aarch64"``; None: this one.
    shims : str, optional
        The folder ``include_shims``; None: ours.
    last_steps : sequence of find steps
        Steps taken when the others gave no complete set.

    Returns
    -------
    Toolchain
        What was found; `problems` and `missing` say what was not.
    """
    from rtcompile.toolkit.assemble import assemble

    where = Surroundings(
        environ,
        tuple(site_dirs),
        tuple(usual_roots),
        TARGETS.get(machine or platform.machine(), ()),
    )
    major = _cupy_major(where)
    places = list(_unique(place for step in STEPS for place in step(where)))
    chosen = _choose(places, major)
    if chosen is None or chosen.lacking():
        places = list(_unique([*places, *(p for step in last_steps for p in step(where))]))
        chosen = _choose(places, major)
    return assemble(where, places, chosen, shims or _shims())


def _cupy_major(where: Surroundings) -> int | None:
    for site_dir in where.site_dirs:
        for name in versions.of_wheels(site_dir):
            match = re.fullmatch(r"cupy-cuda(\d+)x", name)
            if match:
                return int(match[1])
    return None


def _shims() -> str:
    """``include_shims``: inside the package when installed, beside it in a checkout."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "include_shims")
    if os.path.isdir(installed):
        return installed
    return os.path.join(os.path.dirname(package), "include_shims")


def _unique(places: Iterable[Place]) -> Iterator[Place]:
    seen: set[tuple[str, str]] = set()
    for place in places:
        identity = (os.path.realpath(place.root), place.layout)
        if identity not in seen:
            seen.add(identity)
            yield place
