"""Sentences about missing parts of a toolkit: fact, evidence, next step."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rtcompile.request.values import absolute
from rtcompile.toolkit.catalogue import CUDA_ENVIRONMENT, PARTS, Part
from rtcompile.toolkit.model import version_pair
from rtcompile.toolkit.roots import Hit, Root, SearchContext, Toolset, conda_prefixes, given

INSTALL_ANYTHING = (
    '`pip install "rtcompile[cuda12]"` or `"rtcompile[cuda13]"`, or set CUDA_PATH to a toolkit.'
)


def looked_in(where: SearchContext) -> str:
    """Return the folders that were searched, for "looked in …"."""
    named = [f"{name}={where.environ[name]}" for name in given(CUDA_ENVIRONMENT, where)]
    named[:0] = [f"conda's {prefix}" for prefix in conda_prefixes(where)]
    return ", ".join(["site-packages/nvidia", *named, *where.usual_roots])


def useless_variables(where: SearchContext, roots: Sequence[Root]) -> Iterator[str]:
    """Yield a sentence for each variable that names no toolkit."""
    for name in given(CUDA_ENVIRONMENT, where):
        path = absolute(where.environ[name])
        root = next((root for root in roots if root.path == path), None)
        if root and not any(root.look(part) for part in PARTS):
            state = "contains no CUDA toolkit" if os.path.isdir(path) else "is not there"
            yield f"{name}={where.environ[name]} {state}: ignored. Correct it or unset it."


def why_missing(part: Part, chosen: Toolset) -> str:
    """Return why the set lacks `part`, and the command that completes the set."""
    nvrtc = chosen.nvrtc
    here = f"NVRTC {nvrtc.version} ({nvrtc.path})"
    if part.name in chosen.rejected:
        hit, culprit = chosen.rejected[part.name]
        version = f"version {culprit.version or 'unknown'} ({culprit.path}) does not go with {here}"
        replaces = " This replaces the other version." if chosen.mixes(part.name) else ""
        if culprit.part == part:
            fact = f"{part.what}: {version} and is not used."
        else:
            fact = (
                f"{part.what}: {hit.directory} is not searched, because it also contains "
                f"{culprit.part.what}, whose {version}."
            )
        return f"{fact} {_complete(part, chosen)}{replaces}"
    package = part.package(nvrtc.root.layout)
    installed = nvrtc.root.installed.get(package)
    if installed:  # nvidia-cuda-runtime-cu12 12.8 has no libcudadevrt.a, 12.9 has
        return (
            f"{part.what} not found for {here}: {package} {installed} is installed without it. "
            f"{install_toolkit(nvrtc)}"
        )
    return f"{part.what} not found for {here}. {_complete(part, chosen)}"


def _complete(part: Part, chosen: Toolset) -> str:
    """Return the command that installs `part`, together with all other missing required parts."""
    lacking = chosen.lacking() if part.required else []
    wanted = [part, *(other for other in PARTS if other.name in lacking)]
    # Replace the part that makes a folder unfit, not the others in that folder.
    culprits = {
        chosen.rejected[p.name][1].part.name if p.name in chosen.rejected else p.name
        for p in wanted
    }
    return install([p for p in PARTS if p.name in culprits], chosen.nvrtc)


def install(parts: Sequence[Part], nvrtc: Hit) -> str:
    """Return the command that installs `parts` at NVRTC's version, by NVRTC's package manager."""
    release = version_pair(nvrtc.version)
    layout = f"wheels{release[0]}" if nvrtc.root.layout == "toolkit" else nvrtc.root.layout
    none = f"No wheel of CUDA {release[0]} has it. {install_toolkit(nvrtc)}"
    return command(parts, layout, release) or none


def command(parts: Sequence[Part], layout: str, release: tuple[int, int]) -> str:
    """Return the command that installs `parts` of a CUDA release; "" if the layout lacks a package."""
    major, minor = release
    packages = [part.package(layout) for part in parts]
    if not all(packages):
        return ""
    if layout == "conda":
        return f"`conda install {' '.join(packages)} cuda-version={major}.{minor}`."
    wanted = [
        f'"{package}=={wheel_version(part.name, major, minor)}.*"'
        for part, package in zip(parts, packages, strict=True)
    ]
    return f"`pip install {' '.join(wanted)}`."


def wheel_version(part: str, major: int, minor: int) -> str:
    """Return the version of a part's wheel that came with CUDA `major`.`minor`."""
    if part == "curand":
        return f"10.{major - 9}.{minor + 1 if major == 12 else minor}"
    if part == "cccl" and (major, minor) >= (13, 3):  # numbered 13.<CCCL's own version>
        return f"{major}.3.{minor}"
    return f"{major}.{minor}"


def install_nvcc(compiler: Hit | None) -> str:
    """Return how to install an nvcc of a compiler's version, or of any version without a compiler."""
    if compiler is None:
        return (
            '`pip install "rtcompile[cuda13]"` installs it. For CUDA 12 no wheel has it: install a CUDA '
            "toolkit, NVIDIA's or by `conda install cuda-toolkit`, and set CUDA_PATH to it."
        )
    major = version_pair(compiler.version)[0]
    by_pip = compiler.root.layout != "conda" and major == 13
    names = ("nvcc", "nvvm", "crt", "cudart") if by_pip else ("nvcc",)
    return install([part for part in PARTS if part.name in names], compiler)


def install_toolkit(nvrtc: Hit) -> str:
    """Return advice for a part that no wheel of NVRTC's version has."""
    major, minor = version_pair(nvrtc.version)
    return (
        f"Install the CUDA toolkit {major}.{minor}, NVIDIA's or by `conda install cuda-toolkit "
        f"cuda-version={major}.{minor}`, and set CUDA_PATH to it."
    )
