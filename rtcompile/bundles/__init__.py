"""Builds that packages carry: one read-only file each, asked before any cache or compiler.

>>> use_bundle("/site-packages/mykernels/kernels.rtcb")
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rtcompile.core.request import path as checked_path

if TYPE_CHECKING:
    from rtcompile.bundles.file import Bundle

__all__ = ["in_use", "out_of_use", "use_bundle"]

# By path, in the order of use; None until somebody asks it for a build.
_bundles: dict[str, Bundle | None] = {}
_answering = True


def use_bundle(path: str | os.PathLike[str]) -> None:
    """Let a bundle answer builds of this process, before the cache and the compilers.

    Nothing is read before the first build. A bundle that is damaged, is of another format or was
    made for another CUDA is ignored with one `RtcompileWarning`; one that is not there (a checkout,
    an editable install) without. Builds are then compiled as if there were none.

    Parameters
    ----------
    path : path-like
        A file that ``rtcompile bundle`` or a build hook wrote.

    Raises
    ------
    InvalidRequest
        No path.

    Examples
    --------
    >>> rtcompile.use_bundle("/site-packages/mykernels/kernels.rtcb")
    """
    _bundles.setdefault(os.path.abspath(checked_path("bundle", path)), None)


def in_use() -> list[Bundle]:
    """Return the bundles that may answer, in the order in which they were given."""
    if not _bundles or not _answering:
        return []
    from rtcompile.bundles.file import Bundle

    found = []
    for path, bundle in list(_bundles.items()):
        if bundle is None:
            bundle = _bundles[path] = Bundle(path)
        found.append(bundle)
    return found


@contextmanager
def out_of_use() -> Iterator[None]:
    """Let no bundle answer meanwhile: what goes into one is compiled, not taken from one."""
    global _answering
    _answering = False
    try:
        yield
    finally:
        _answering = True
