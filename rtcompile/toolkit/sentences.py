"""What is said of what is not there: fact, evidence, next step."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rtcompile.toolkit.catalogue import CUDA_ENVIRONMENT, PARTS, Part
from rtcompile.toolkit.model import version_pair
from rtcompile.toolkit.places import Hit, Place, Surroundings
from rtcompile.toolkit.toolset import Toolset

__all__ = ["INSTALL_ANYTHING", "given", "install", "looked_in", "useless_variables", "why_missing"]

INSTALL_ANYTHING = (
    '`pip install "rtcompile[cuda12]"` or `"rtcompile[cuda13]"`, or set CUDA_PATH to a toolkit.'
)


def given(names: Sequence[str], where: Surroundings) -> Iterator[str]:
    """Return those of the environment variables that are set to something."""
    return (name for name in names if where.environ.get(name))


def looked_in(where: Surroundings) -> str:
    """Return the places, for "looked in …"."""
    named = [f"{name}={where.environ[name]}" for name in given(CUDA_ENVIRONMENT, where)]
    if where.environ.get("CONDA_PREFIX"):
        named.insert(0, f"CONDA_PREFIX={where.environ['CONDA_PREFIX']}")
    return ", ".join(["site-packages/nvidia", *named, *where.usual_roots])


def useless_variables(where: Surroundings, places: Sequence[Place]) -> Iterator[str]:
    """Yield a sentence for each variable that names no toolkit."""
    for name in given(CUDA_ENVIRONMENT, where):
        root = os.path.abspath(where.environ[name])
        place = next((place for place in places if place.root == root), None)
        if place and not any(place.look(part) for part in PARTS):
            state = "holds no CUDA toolkit" if os.path.isdir(root) else "is not there"
            yield f"{name}={where.environ[name]} {state}: ignored. Correct it or unset it."


def why_missing(part: Part, chosen: Toolset) -> str:
    """Return why the set is without `part`, and what to do."""
    nvrtc = chosen.nvrtc
    here = f"NVRTC {nvrtc.version} ({nvrtc.path})"
    if part.name in chosen.rejected:
        other = chosen.rejected[part.name]
        why = f"{part.what}: version {other.version or 'unknown'} ({other.path}) does not go with "
        advice = install(part, chosen)
        if chosen.mixes(part.name):
            advice += " That replaces the other."
        return f"{why}{here} and is not used. {advice}"
    package = part.packages.get(nvrtc.place.layout, "")
    installed = nvrtc.place.installed.get(package)
    if installed:  # nvidia-cuda-runtime-cu12 12.8 has no libcudadevrt.a, 12.9 has
        return (
            f"{part.what} not found for {here}: {package} {installed} is installed without it. "
            f"{install_toolkit(nvrtc)}"
        )
    return f"{part.what} not found for {here}. {install(part, chosen)}"


def install(part: Part, chosen: Toolset) -> str:
    """Return the command that brings `part` at NVRTC's version, in the way NVRTC itself came."""
    major, minor = version_pair(chosen.nvrtc.version)
    layout = chosen.nvrtc.place.layout
    if layout == "toolkit":
        layout = f"wheels{major}"
    package = part.packages.get(layout)
    if package is None:
        return install_toolkit(chosen.nvrtc)
    if layout == "conda":
        return f"`conda install {package} cuda-version={major}.{minor}`."
    if part.name == "curand":
        return f"`pip install {package}`."
    if part.name == "cccl" and (major, minor) >= (13, 3):  # numbered 13.<CCCL's own> since then
        return f'`pip install "{package}=={major}.3.{minor}.*"`.'
    return f'`pip install "{package}=={major}.{minor}.*"`.'


def install_toolkit(nvrtc: Hit) -> str:
    major, minor = version_pair(nvrtc.version)
    return f"Install the CUDA toolkit {major}.{minor} and set CUDA_PATH to it."
