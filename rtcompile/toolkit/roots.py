"""The folders (roots) that may contain a toolkit, and the choice of parts of one version among them."""

from __future__ import annotations

import glob
import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence

from rtcompile.lookup.environment import on_path
from rtcompile.named import NamedTuple
from rtcompile.request.values import absolute
from rtcompile.toolkit import catalogue
from rtcompile.toolkit.model import version_pair


class SearchContext(NamedTuple):
    """All inputs of the search; `prefix` is ``sys.prefix``, this Python's folder."""

    environ: Mapping[str, str]
    site_dirs: tuple[str, ...]
    usual_roots: tuple[str, ...]
    targets: tuple[str, ...]
    prefix: str = ""


class Root(NamedTuple):
    """A folder that may contain a toolkit, in one of the known layouts."""

    path: str
    layout: str
    found_via: str
    targets: tuple[str, ...]
    installed: Mapping[str, str]

    def look(self, part: catalogue.Part) -> Hit | None:
        """Return this root's `part`, or None."""
        for relative in part.directories(self.layout, self.targets):
            directory = os.path.join(self.path, relative)
            if _has_host_headers(directory):
                continue
            for marker in part.markers:
                path = os.path.join(directory, marker)
                if os.path.isfile(path):
                    package = self.installed.get(part.package(self.layout), "")
                    version = catalogue.of_part(part, directory, path, package)
                    return Hit(part, directory, path, version or self._own_version(part), self)
        return None

    def _own_version(self, part: catalogue.Part) -> str:
        """Return the version of the runtime headers, for a part without one; "" for wheels, which can differ."""
        if self.layout not in ("toolkit", "conda") or part.name in ("cudart", "nvcc"):
            return ""
        cudart = self.look(catalogue.PART["cudart"])
        return cudart.version if cudart else ""


class Hit(NamedTuple):
    """A part found in a root. `version` is empty if unknown."""

    part: catalogue.Part
    directory: str
    path: str
    version: str
    root: Root


def _has_host_headers(directory: str) -> bool:
    # Debian installs nvidia-cuda-toolkit into /usr/include. Passed as -I, that folder would give
    # NVRTC the host's libc and libstdc++, which it cannot compile.
    return os.path.exists(os.path.join(directory, "stdlib.h"))


# --- the roots, in order of preference -----------------------------------------------------------


def given(names: Sequence[str], where: SearchContext) -> Iterator[str]:
    """Return the environment variables that are not empty."""
    return (name for name in names if where.environ.get(name))


def conda_prefixes(where: SearchContext) -> list[str]:
    """Return the conda environment of this Python, which may be a notebook's kernel, then the active one."""
    own = [where.prefix] if os.path.isdir(os.path.join(where.prefix, "conda-meta")) else []
    return [*own, *filter(None, [where.environ.get("CONDA_PREFIX")])]


def usual(where: SearchContext) -> Iterator[Root]:
    """Yield the roots of wheels, conda, the user's variables, nvcc on PATH, and the installers' default folders."""
    for site_dir in where.site_dirs:  # `pip install --target` folders on sys.path included
        if os.path.isdir(os.path.join(site_dir, "nvidia")):
            installed = catalogue.of_wheels(site_dir)
            for layout in catalogue.WHEELS:
                yield Root(site_dir, layout, "site-packages", where.targets, installed)
    for prefix in conda_prefixes(where):
        yield Root(prefix, "conda", "conda", where.targets, catalogue.of_conda(prefix))
    for variable in given(catalogue.CUDA_ENVIRONMENT, where):
        yield _toolkit(where.environ[variable], variable, where)
    if nvcc := on_path("nvcc", where.environ.get("PATH", "")):
        yield _toolkit(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "PATH", where)
    for pattern in where.usual_roots:  # the newest first
        found = [([int(n) for n in re.findall(r"\d+", p)], p) for p in glob.glob(pattern)]
        for _, root in sorted(found, reverse=True):
            yield _toolkit(root, "system", where)


def _toolkit(root: str, found_via: str, where: SearchContext) -> Root:
    root = absolute(root)
    return Root(root, "toolkit", found_via, where.targets, catalogue.of_toolkit(root))


def cupy_cccl(where: SearchContext) -> str | None:
    """Return the folder of CuPy's bundled CCCL, which is used if the set has none."""
    for site_dir in where.site_dirs:
        root = os.path.join(site_dir, "cupy/_core/include/cupy/_cccl")
        if os.path.isfile(os.path.join(root, "libcudacxx", catalogue.PART["cccl"].markers[0])):
            return root
    return None


# --- one set of one version ----------------------------------------------------------------------


def culprit_of(hit: Hit, compiler: Hit) -> Hit | None:
    """Return the part of another version that makes `hit` unusable, itself or one in its folder; None if it fits."""
    together = [hit]
    if hit.part.name in catalogue.HEADER_PARTS:
        found = (hit.root.look(catalogue.PART[name]) for name in catalogue.HEADER_PARTS)
        together += [other for other in found if other and other.directory == hit.directory]
    return next((part for part in together if not _goes_with(part, compiler)), None)


def _goes_with(hit: Hit, compiler: Hit) -> bool:
    """Return whether a part has the compiler's major.minor; without a version it must be in its root."""
    if hit.part.name == "curand":  # has its own numbers: 10.3 in CUDA 12.9 and 12.6
        major = catalogue.WHEELS.get(hit.root.layout)
        return major in (None, version_pair(compiler.version)[0])
    if not hit.version:
        return hit.root == compiler.root
    own, wanted = version_pair(hit.version), version_pair(compiler.version)
    if hit.part.name == "nvjitlink":  # it links the output of older compilers of its major version
        return own[0] == wanted[0] and own >= wanted
    return own == wanted


class Toolset(NamedTuple):
    """NVRTC of one folder and all parts that fit it."""

    nvrtc: Hit  # the compiler for which the other parts are chosen
    hits: Mapping[str, Hit]
    # Parts that exist only in unfit folders: where each was found, and the part that makes that folder unfit.
    rejected: Mapping[str, tuple[Hit, Hit]]

    def lacking(self, spare: Collection[str] = ()) -> list[str]:
        """Return the required parts that are neither in the set nor in `spare`."""
        return [
            part.name
            for part in catalogue.PARTS
            if part.required and part.name not in self.hits and part.name not in spare
        ]

    def mixes(self, name: str) -> bool:
        """Return whether NVRTC's own root contains this part in another version."""
        return name in self.rejected and self.rejected[name][0].root == self.nvrtc.root


def _toolsets(roots: Sequence[Root]) -> Iterator[Toolset]:
    for root in roots:
        nvrtc = root.look(catalogue.PARTS[0])
        if nvrtc is None or not nvrtc.version:
            continue
        hits = {"nvrtc": nvrtc}
        rejected: dict[str, tuple[Hit, Hit]] = {}
        for part in catalogue.PARTS[1:]:
            for other in (root, *(p for p in roots if p != root)):
                hit = other.look(part)
                if hit is None:
                    continue
                culprit = culprit_of(hit, nvrtc)
                if culprit is None:
                    hits[part.name] = hit
                    rejected.pop(part.name, None)
                    break
                rejected.setdefault(part.name, (hit, culprit))
        yield Toolset(nvrtc, hits, rejected)


def choose(roots: Sequence[Root], major: int | None, spare: Collection[str]) -> Toolset | None:
    """Return the set that lacks the fewest parts, not counting `spare` ones; CUDA `major` is preferred."""

    def rank(found: Toolset) -> tuple[bool, int]:
        other_major = major is not None and version_pair(found.nvrtc.version)[0] != major
        return other_major, len(found.lacking(spare))

    return min(_toolsets(roots), key=rank, default=None)


# --- CUTLASS: from a package, conda, or a variable's folder ----------------------------------------

CUTLASS_MARKER = "cutlass/version.h"

_USUAL_CUTLASS = "4.2"  # assumed for headers without a version

# The last wheel of that name, 4.2, fits every CUDA since 12.4.
INSTALL_CUTLASS = "pip install nvidia-cutlass"

# Wheels that contain CUTLASS's headers, and their folders in site-packages.
CUTLASS_PACKAGES = {
    "nvidia-cutlass": "cutlass_library/source/include",
    "flashinfer-python": "flashinfer/data/cutlass/include",
    "tilelang": "tilelang/3rdparty/cutlass/include",
    "sgl-kernel": "deep_gemm/include",
    "vllm": "vllm/third_party/deep_gemm/include",
}


class CutlassPair(NamedTuple):
    """Versions of a CUTLASS and a CCCL that compile CuTe together, as ranges from the first to before the second."""

    cutlass: tuple[tuple[int, int], tuple[int, int]]
    cccl: tuple[tuple[int, int], tuple[int, int]]
    shims: bool  # whether ``include_shims/cutlass`` must be searched before CUTLASS


_OPEN = (sys.maxsize, 0)  # ends a range that has no upper bound
CUTLASS_PAIRS = (
    CutlassPair(cutlass=((3, 2), (4, 3)), cccl=((0, 0), (2, 5)), shims=False),
    CutlassPair(cutlass=((4, 3), (4, 7)), cccl=((0, 0), (2, 5)), shims=True),
    CutlassPair(cutlass=((3, 2), _OPEN), cccl=((2, 5), (3, 2)), shims=False),
    CutlassPair(cutlass=((3, 2), _OPEN), cccl=((3, 2), _OPEN), shims=True),
)


class Cutlass(NamedTuple):
    """A folder of CUTLASS's headers, with ``cute/`` and ``cutlass/``."""

    directory: str
    version: str
    via: str  # its package or environment variable
    last: bool = False  # whether it has other headers too, so it is searched last


def find_cutlass(
    where: SearchContext, cuda: str, cccl: str, problems: list[str]
) -> tuple[Cutlass | None, str]:
    """Return the CUTLASS in a variable's folder, else the newest that fits this CUDA and CCCL, and why."""
    for name in given(catalogue.CUTLASS_ENVIRONMENT, where):
        root = absolute(where.environ[name])
        folders = os.path.join(root, "include"), root
        named = next((folder for folder in folders if _has_cutlass(folder)), None)
        if named:
            return Cutlass(named, catalogue.of_cutlass(named), name), name
        markers = " and ".join(os.path.join(folder, CUTLASS_MARKER) for folder in folders)
        fact = f"{name}={where.environ[name]} names no CUTLASS: {markers} do not exist."
        if name == catalogue.CUTLASS_ENVIRONMENT[0]:
            why = f"{fact} Correct it, or unset it."
            problems.append(why)
            return None, why
        problems.append(f"{fact} It is ignored: correct it, or unset it.")
    installed = [*_installed_cutlass(where)]
    installed.sort(key=lambda each: [*map(int, re.findall(r"\d+", each.version))], reverse=True)
    if not installed:
        why = (
            f"CUTLASS (cute/, cutlass/) not found; looked in {', '.join(CUTLASS_PACKAGES)} and conda. "
            f"`{INSTALL_CUTLASS}`, or set RTCOMPILE_CUTLASS_PATH to a checkout."
        )
        return None, why
    fitting = [each for each in installed if not cccl or pair_cutlass(each.version, cccl)]
    found = (fitting or installed)[0]
    others = [f"{each.version} of {each.via}" for each in installed if each != found]
    why = found.via
    if others:
        rank = "the newest that goes" if fitting else "the newest, though none goes"
        why += f", {rank} with CUDA {cuda} (there is {', '.join(others)} too)"
    return found, why


def pair_cutlass(cutlass: str, cccl: str) -> CutlassPair | None:
    """Return the table's row for these versions; None if they do not fit together."""
    own, other = version_pair(cutlass or _USUAL_CUTLASS), version_pair(cccl)
    rows = (row for row in CUTLASS_PAIRS if row.cutlass[0] <= own < row.cutlass[1])
    return next((row for row in rows if row.cccl[0] <= other < row.cccl[1]), None)


def _installed_cutlass(where: SearchContext) -> Iterator[Cutlass]:
    for site_dir in where.site_dirs:
        for package, folder in CUTLASS_PACKAGES.items():
            directory = os.path.join(site_dir, folder)
            if _has_cutlass(directory):
                yield Cutlass(directory, catalogue.of_cutlass(directory), package)
    for prefix in conda_prefixes(where):
        directory = os.path.join(prefix, "include")
        # The folder contains headers of all other packages too, so it is searched last.
        if _has_cutlass(directory) and not _has_host_headers(directory):
            yield Cutlass(directory, catalogue.of_cutlass(directory), "conda", last=True)


def _has_cutlass(directory: str) -> bool:
    return os.path.isfile(os.path.join(directory, CUTLASS_MARKER))
