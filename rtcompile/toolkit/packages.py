"""Advice for `cannot open source file`: which package has a header, and why it was not found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rtcompile.toolkit.catalogue import PARTS
from rtcompile.toolkit.sentences import wheel_version

if TYPE_CHECKING:
    from rtcompile.toolkit.model import Program, Toolchain


@dataclass(frozen=True, slots=True)
class Package:
    """Headers and where they come from."""

    names: tuple[str, ...]  # a name that ends in ``/`` or ``*`` stands for all that begin with it
    what: str  # their name in messages
    # What to install for CUDA 12, and for CUDA 13 where that is another package.
    pip: tuple[str, ...]
    conda: str = ""  # the conda-forge package
    part: str = ""  # the part of a toolchain that they belong to, if any
    then: str = ""  # a further step after installing


class HeaderAdvice(NamedTuple):
    """What a missing header belongs to (`what`), `why` it was not found, and the next `step`.

    >>> "crt/mma.h comes with {what}, {why}. {step}".format_map(advice._asdict())
    """

    what: str
    why: str
    step: str


def _of_part(name: str, what: str, *headers: str) -> Package:
    part = next(part for part in PARTS if part.name == name)
    pip = part.package("wheels12"), part.package("wheels13")
    return Package(headers, what, pip, part.package("conda"), name)


_PACKAGES = (
    _of_part("crt", "the crt headers", "crt/"),
    _of_part("cccl", "CCCL", "cuda/", "cub/", "thrust/", "nv/target", "cccl/"),
    _of_part("curand", "the cuRAND headers", "curand*"),
    _of_part("nvjitlink", "nvJitLink", "nvJitLink.h"),
    Package(("nvtx3/",), "the NVTX headers", ("nvidia-nvtx-cu12", "nvidia-nvtx"), "cuda-nvtx-dev"),
    Package(("cute/", "cutlass/"), "CUTLASS", ("nvidia-cutlass",), part="cutlass"),
    Package(("cupy/",), "CuPy", ("cupy-cuda12x", "cupy-cuda13x"), "cupy", "cupy"),
    Package(
        ("cublasdx*", "cufftdx*", "curanddx*", "cusolverdx*"),
        "MathDx",
        ("nvidia-mathdx",),
        then="add -I of its nvidia/mathdx/include",
    ),
    _of_part(
        "cudart",
        "the CUDA runtime headers",
        *(
            "cooperative_groups*",
            "cuComplex.h",
            "cuda.h",
            "cuda_*",
            "cudart_platform.h",
            "device_*",
        ),
        *("driver_types.h", "library_types.h", "math_constants.h", "mma.h", "sm_*", "surface_*"),
        *("texture_*", "vector_*"),
    ),
)


def missing_header(
    name: str, toolchain: Toolchain | None = None, backend: str = "nvrtc"
) -> HeaderAdvice | None:
    """Return which package has the header `name`, and why it was not found; None if unknown."""
    for package in _PACKAGES:
        if any(_stands_for(pattern, name) for pattern in package.names):
            why, step = _of_build(package, toolchain, backend) if toolchain else ("", "")
            return HeaderAdvice(
                package.what, why or "which is not installed here", step or _install(package)
            )
    return None


def _of_build(package: Package, toolchain: Toolchain, backend: str) -> tuple[str, str]:
    """Return why this toolchain does not have it, and what to do; both empty if unknown."""
    part = package.part
    if part in toolchain.missing:
        fact, _, step = toolchain.missing[part].partition(". ")
        return f"which the search did not find fit: {fact}", step
    folder = next((d.path for d in toolchain.search if d.label == part), "")
    found = f"{toolchain.versions.get(part, '')} ({folder or toolchain.found_via.get(part, '')})"
    if part not in toolchain.found_via:
        return "", ""
    nvcc = toolchain.nvcc
    if backend == "nvcc" and nvcc and part not in [d.label for d in toolchain.nvcc_search]:
        why = (
            f"which is installed for NVRTC, {found}; nvcc {nvcc.version} ({nvcc.path}) reads the "
            "headers of its own toolkit, which is without it"
        )
        return why, _into_nvccs(package, toolchain.found_via.get("nvcc", ""), nvcc, folder)
    if toolchain.found_via[part] == "NVRTC" and toolchain.nvrtc:  # inside its file: not all of them
        wheel = wheel_version(part, *toolchain.nvrtc.version_pair)
        why = f"of which NVRTC's own file, {found}, has only what most kernels need"
        return why, f'`pip install "{package.pip[-1]}=={wheel}.*"`.'
    return f"which is installed, {found}, without this file", "Another version of it may have it."


def _into_nvccs(package: Package, found_via: str, nvcc: Program, folder: str) -> str:
    """Return how to make the headers visible to nvcc."""
    major, minor = nvcc.version_pair
    if found_via == "site-packages":  # this is CUDA 13, since no wheel of CUDA 12 has nvcc
        return f'`pip install "{package.pip[-1]}=={wheel_version(package.part, major, minor)}.*"`.'
    if found_via == "conda":
        return f"`conda install {package.conda} cuda-version={major}.{minor}`."
    # A folder that holds only cuRAND is safe as -I; others would mix with nvcc's own headers.
    add = f", or add -I{folder} to the options" if package.part == "curand" else ""
    return f"Install it into the toolkit that nvcc is of{add}."


def _stands_for(pattern: str, name: str) -> bool:
    return name.startswith(pattern.rstrip("*")) if pattern[-1] in "/*" else name == pattern


def _install(package: Package) -> str:
    first, *second = package.pip
    text = f"`pip install {first}`"
    if second:
        text += f" (CUDA 12) or `{second[0]}` (CUDA 13)"
    if package.conda:
        text += f", conda: {package.conda}"
    if package.then:
        text += f"; then {package.then}"
    return f"{text}."
