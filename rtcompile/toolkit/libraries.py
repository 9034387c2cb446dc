"""The headers that installed packages bring: CUTLASS's, and those declared by entry points."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from rtcompile.toolkit import catalogue
from rtcompile.toolkit.advice import given
from rtcompile.toolkit.catalogue import CUTLASS_ENVIRONMENT
from rtcompile.toolkit.roots import SearchContext, conda_prefixes

MARKER = "cutlass/version.h"

_USUAL = "4.2"  # assumed of headers that state no version

# The last wheel of that name, 4.2, goes with every CUDA since 12.4.
_INSTALL = "pip install nvidia-cutlass"

# Wheels that carry CUTLASS's headers, and where they keep them in site-packages.
PACKAGES = {
    "nvidia-cutlass": "cutlass_library/source/include",
    "flashinfer-python": "flashinfer/data/cutlass/include",
    "tilelang": "tilelang/3rdparty/cutlass/include",
    "sgl-kernel": "deep_gemm/include",
    "vllm": "vllm/third_party/deep_gemm/include",
}


class Pair(NamedTuple):
    """Version specifiers, as pip reads them, of a CUTLASS and a CCCL that compile CuTe together."""

    cutlass: str
    cccl: str
    shims: bool  # whether ``include_shims/cutlass`` has to be searched before CUTLASS


PAIRS = (
    Pair(cutlass=">=3.2,<4.3", cccl="<2.5", shims=False),
    Pair(cutlass=">=4.3,<4.7", cccl="<2.5", shims=True),
    Pair(cutlass=">=3.2", cccl=">=2.5,<3.2", shims=False),
    Pair(cutlass=">=3.2", cccl=">=3.2", shims=True),
)


class Found(NamedTuple):
    """A folder of CUTLASS's headers, which contains ``cute/`` and ``cutlass/``."""

    directory: str
    version: str
    via: str  # the package, or the environment variable, that it comes from
    last: bool = False  # whether other headers lie there too, so it is searched after all others


def find(
    where: SearchContext, cuda: str, cccl: str, problems: list[str]
) -> tuple[Found | None, str]:
    """Return the CUTLASS that a variable names, else the newest that fits this CUDA and CCCL, and why."""
    for name in given(CUTLASS_ENVIRONMENT, where):
        root = os.path.abspath(where.environ[name])
        folders = os.path.join(root, "include"), root
        named = next((folder for folder in folders if _has_cutlass(folder)), None)
        if named:
            found = Found(named, catalogue.of_cutlass(named), name)
            return found, name
        markers = " and ".join(os.path.join(folder, MARKER) for folder in folders)
        fact = f"{name}={where.environ[name]} names no CUTLASS: {markers} do not exist."
        if name == CUTLASS_ENVIRONMENT[0]:
            why = f"{fact} Correct it, or unset it."
            problems.append(why)
            return None, why
        problems.append(f"{fact} It is ignored: correct it, or unset it.")
    installed = sorted(_installed(where), key=lambda each: _version(each.version), reverse=True)
    if not installed:
        why = (
            f"CUTLASS (cute/, cutlass/) not found; looked in {', '.join(PACKAGES)} and conda. "
            f"`{_INSTALL}`, or set RTCOMPILE_CUTLASS_PATH to a checkout."
        )
        return None, why
    found = next((each for each in installed if not cccl or pair(each.version, cccl)), installed[0])
    others = [f"{each.version} of {each.via}" for each in installed if each != found]
    why = found.via
    if others:
        why += f", the newest that goes with CUDA {cuda} (there is {', '.join(others)} too)"
    return found, why


def pair(cutlass: str, cccl: str) -> Pair | None:
    """Return the row of the table for these versions; None if they do not go together."""
    own, other = _version(cutlass or _USUAL), _version(cccl)
    rows = (row for row in PAIRS if own in SpecifierSet(row.cutlass))
    return next((row for row in rows if other in SpecifierSet(row.cccl)), None)


def misfit(found: Found, cuda: str, cccl: str) -> str:
    """Return what is wrong with a CUTLASS and a CCCL that do not go together, and the next step."""
    unset = f"unset {found.via} and " if found.via in CUTLASS_ENVIRONMENT else ""
    return (
        f"CUTLASS {found.version} ({found.directory}) does not go with CUDA {cuda} (CCCL {cccl}): "
        f"NVRTC does not compile CuTe. To have one that does, {unset}`{_INSTALL}`."
    )


def _installed(where: SearchContext) -> Iterator[Found]:
    for site_dir in where.site_dirs:
        for package, folder in PACKAGES.items():
            directory = os.path.join(site_dir, folder)
            if _has_cutlass(directory):
                yield Found(directory, catalogue.of_cutlass(directory), package)
    for prefix in conda_prefixes(where):
        directory = os.path.join(prefix, "include")
        # The folder contains headers of every other package, too: all other folders go before it.
        if _has_cutlass(directory) and not os.path.exists(os.path.join(directory, "stdlib.h")):
            yield Found(directory, catalogue.of_cutlass(directory), "conda", last=True)


def _has_cutlass(directory: str) -> bool:
    return os.path.isfile(os.path.join(directory, MARKER))


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:  # none is stated
        return Version("0")
