"""Finds one consistent toolkit: each root is judged as a whole, and versions are never mixed.

The order of roots is cuda.pathfinder's: this environment's wheels, conda, CUDA_PATH/CUDA_HOME,
the system. cuda.pathfinder searches for each part by itself and takes it from the first root that
has it, so NVRTC of one version can end up with headers of another. Therefore rtcompile walks
the roots itself and asks cuda.pathfinder last, for the loader's own paths and for newer layouts.

The first root with a complete set wins. A part that a root lacks, or has in another version, is
taken from a later root of the same major.minor; for CCCL, CuPy's own copy is used too. Only
`roots.unfit` decides which parts go together. If no root is complete, the one that lacks the
fewest parts wins and `Toolchain.problems` says what to install. Where CuPy is installed, a CUDA of
CuPy's major version is preferred, since the driver may not load code of another one.

NVRTC 13.3 and newer carries headers inside its own file. They complete a set that lacks some.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rtcompile.toolkit.assemble import assemble
from rtcompile.toolkit.catalogue import TARGETS, USUAL_ROOTS
from rtcompile.toolkit.model import Toolchain
from rtcompile.toolkit.roots import (
    LAST_STEPS,
    STEPS,
    Hit,
    Root,
    SearchContext,
    Step,
    choose,
    cupy_cccl,
    cupy_major,
)


def find(
    environ: Mapping[str, str],
    site_dirs: Sequence[str],
    *,
    usual_roots: Sequence[str] = USUAL_ROOTS,
    machine: str | None = None,
    shims: str | None = None,
    last_steps: Sequence[Step] = LAST_STEPS,
    prefix: str = "",
    unpack: Callable[[Hit], str | None] = lambda _: None,
) -> Toolchain:
    """Search for a toolkit; the arguments are all that the result depends on.

    `site_dirs` are in order of preference, and `usual_roots` are patterns of folders. `last_steps`
    are taken, and `unpack` returns the folder of headers inside an NVRTC, only if the other steps
    gave no complete set. `prefix` is ``sys.prefix``, which may be a conda environment. A None
    stands for this machine and this installation.
    """
    where = SearchContext(
        environ,
        tuple(site_dirs),
        tuple(usual_roots),
        TARGETS.get(machine or platform.machine(), ()),
        prefix,
    )
    major = cupy_major(where)
    spare = ("cccl",) if cupy_cccl(where) else ()
    roots = list(_unique(root for step in STEPS for root in step(where)))
    chosen = choose(roots, major, spare)
    if chosen is None or chosen.lacking(spare):
        roots = list(_unique([*roots, *(p for step in last_steps for p in step(where))]))
        chosen = choose(roots, major, spare)
    if chosen is not None and chosen.lacking():
        folder = unpack(chosen.nvrtc)
        if folder is not None:
            versions = {"nvrtc": chosen.nvrtc.version}
            roots.append(Root(folder, "bundled", "NVRTC", where.targets, versions))
            chosen = choose(roots, major, spare)
    return assemble(where, roots, chosen, shims or _shims())


def _unique(roots: Iterable[Root]) -> Iterator[Root]:
    seen: set[tuple[str, str]] = set()
    for root in roots:
        identity = (os.path.realpath(root.path), root.layout)
        if identity not in seen:
            seen.add(identity)
            yield root


def _shims() -> str:
    """``include_shims``: inside the package when installed, beside it in a checkout."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    installed = os.path.join(package, "include_shims")
    if os.path.isdir(installed):
        return installed
    return os.path.join(os.path.dirname(package), "include_shims")
