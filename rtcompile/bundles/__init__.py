"""Builds that packages ship, in one read-only file each, searched before the cache.

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

# By path, in the order of use. The value is None until the bundle is first searched.
_bundles: dict[str, Bundle | None] = {}
_answering = True


def use_bundle(path: str | os.PathLike[str]) -> None:
    """Let a bundle answer builds of this process, before the cache and the compilers.

    Nothing is read before the first build. A bundle that is damaged, is of another format or was
    made for another CUDA is ignored with one `RtcompileWarning`. A missing one (in a checkout or an
    editable install) is ignored silently. Builds are then compiled as usual.

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
    """Return the bundles in use, in the order in which they were added."""
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
    """Use no bundle meanwhile, so that builds for a new bundle are compiled."""
    global _answering
    _answering = False
    try:
        yield
    finally:
        _answering = True
