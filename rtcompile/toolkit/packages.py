"""Which package brings a header, as data: what to say after `cannot open source file`."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["missing_header"]


@dataclass(frozen=True, slots=True)
class Package:
    """Headers and where they come from.

    Attributes
    ----------
    names : tuple of str
        Headers; a name that ends in ``/`` or ``*`` stands for all that begin with it.
    what : str
        How a message calls them.
    pip : tuple of str
        What to install for CUDA 12, and for CUDA 13 where that is another package.
    conda : str
        The conda-forge package; empty where there is none.
    then : str
        What is left to do after installing.
    """

    names: tuple[str, ...]
    what: str
    pip: tuple[str, ...]
    conda: str = ""
    then: str = ""


_PACKAGES = (
    Package(("crt/",), "the crt headers", ("nvidia-cuda-nvcc-cu12", "nvidia-cuda-crt"), "cuda-crt"),
    Package(
        ("cuda/", "cub/", "thrust/", "nv/target"),
        "CCCL",
        ("nvidia-cuda-cccl-cu12", "nvidia-cuda-cccl"),
        "cuda-cccl",
    ),
    Package(
        ("curand*",), "the cuRAND headers", ("nvidia-curand-cu12", "nvidia-curand"), "libcurand-dev"
    ),
    Package(("nvtx3/",), "the NVTX headers", ("nvidia-nvtx-cu12", "nvidia-nvtx"), "cuda-nvtx-dev"),
    Package(("cute/", "cutlass/"), "CUTLASS", ("nvidia-cutlass",)),
    Package(("cupy/",), "CuPy", ("cupy-cuda12x", "cupy-cuda13x"), "cupy"),
    Package(
        ("cublasdx*", "cufftdx*", "curanddx*", "cusolverdx*"),
        "MathDx",
        ("nvidia-mathdx",),
        then="add -I of its nvidia/mathdx/include",
    ),
    Package(
        (
            "cooperative_groups*",
            "cuComplex.h",
            "cuda.h",
            "cuda_*",
            "cudart_platform.h",
            "device_*",
            "driver_types.h",
            "library_types.h",
            "math_constants.h",
            "mma.h",
            "sm_*",
            "surface_*",
            "texture_*",
            "vector_*",
        ),
        "the CUDA runtime headers",
        ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime"),
        "cuda-cudart-dev",
    ),
)


def missing_header(name: str) -> str | None:
    """Return what brings the header `name` and how to install it; None if we do not know.

    Examples
    --------
    >>> missing_header("crt/mma.h")
    'the crt headers: `pip install nvidia-cuda-nvcc-cu12` (CUDA 12) or `nvidia-cuda-crt` (CUDA 13), conda: cuda-crt'
    """
    for package in _PACKAGES:
        if any(_stands_for(pattern, name) for pattern in package.names):
            return _sentence(package)
    return None


def _stands_for(pattern: str, name: str) -> bool:
    if pattern.endswith("/"):
        return name.startswith(pattern)
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1])
    return name == pattern


def _sentence(package: Package) -> str:
    first, *second = package.pip
    text = f"{package.what}: `pip install {first}`"
    if second:
        text += f" (CUDA 12) or `{second[0]}` (CUDA 13)"
    if package.conda:
        text += f", conda: {package.conda}"
    if package.then:
        text += f"; then {package.then}"
    return text
