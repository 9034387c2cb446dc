"""Builds that packages ship, in one read-only file each, searched before the cache.

>>> use_bundle("/site-packages/mykernels/kernels.rtcb")
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rtcompile.bundles.file import Bundle
    from rtcompile.bundles.parts import Parts

__all__ = ["in_use", "out_of_use", "parts_in_use", "use", "use_bundle"]

# By path, in the order of use. The value is None until the bundle is first searched.
_bundles: dict[str, Parts | None] = {}
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
    from rtcompile.core.request import path as checked_path

    use(checked_path("bundle", path))


def use(path: str) -> None:
    """Use a bundle, as `use_bundle` does, whose path was checked."""
    _bundles.setdefault(os.path.abspath(path), None)


def in_use() -> list[Bundle]:
    """Return the bundles in use, in the order in which they were added."""
    if not _bundles or not _answering:
        return []
    from rtcompile.bundles.file import Bundle

    found = []
    for parts in parts_in_use():
        if parts.reader is None:
            parts.reader = Bundle(parts.path, parts)
        found.append(parts.reader)
    return found


def parts_in_use() -> list[Parts]:
    """Return the files of the bundles in use, in the order in which they were added."""
    if not _bundles or not _answering:
        return []
    from rtcompile.bundles.parts import Parts

    found = []
    for path, parts in list(_bundles.items()):
        if parts is None:
            parts = _bundles[path] = Parts(path)
        found.append(parts)
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
