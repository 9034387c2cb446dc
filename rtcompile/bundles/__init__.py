"""Bundles: read-only files of builds that packages carry, searched before the cache.

>>> use_bundle("/site-packages/mykernels/kernels.rtcb")
"""

from __future__ import annotations

import os

from rtcompile.files import folders
from rtcompile.lookup.query import loaded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rtcompile.bundles.file import Bundle
    from rtcompile.bundles.sections import Sections

__all__ = [
    "are_in_use",
    "cuda_major",
    "in_use",
    "out_of_use",
    "sections_in_use",
    "use",
    "use_bundle",
]

# By path, in the order of use. The value is None until the bundle is first searched.
_bundles: dict[str, Sections | None] = {}
_enabled = True


def use_bundle(path: str | os.PathLike[str]) -> None:
    """Search a bundle for the builds of this process, before the cache and the compilers.

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
        `path` is not a path.

    Examples
    --------
    >>> rtcompile.use_bundle("/site-packages/mykernels/kernels.rtcb")
    """
    from rtcompile.request.values import path as checked_path

    use(checked_path("bundle", path))


def use(path: str) -> None:
    """Use a bundle as `use_bundle` does, without checking its path."""
    _bundles.setdefault(os.path.abspath(path), None)


def are_in_use(more: tuple[str, ...] = ()) -> bool:
    """Say whether any bundle is searched, if those in `more` are used too."""
    return _enabled and bool(_bundles or more)


def in_use() -> list[Bundle]:
    """Return the bundles in use, in the order in which they were added."""
    if not are_in_use():
        return []
    from rtcompile.bundles.file import Bundle

    found = []
    for sections in sections_in_use():
        if sections.reader is None:
            sections.reader = Bundle(sections.path, sections)
        found.append(sections.reader)
    return found


def sections_in_use() -> list[Sections]:
    """Return the sections of the bundles in use, in the order in which they were added."""
    if not are_in_use():
        return []
    from rtcompile.bundles.sections import Sections

    found = []
    for path, sections in list(_bundles.items()):
        if sections is None:
            sections = _bundles[path] = Sections(path)
        found.append(sections)
    return found


class out_of_use:  # noqa: N801 - ``with`` statements use it like a function
    """Search no bundle in the body of ``with``, where the builds of a new bundle are compiled."""

    def __enter__(self) -> None:
        global _enabled
        _enabled = False

    def __exit__(self, *_: object) -> None:
        global _enabled
        _enabled = True


_installed: dict[tuple[str, ...], int | None] = {}


def cuda_major() -> int | None:
    """Return the major version of the CUDA that CuPy launches code with; None if unknown.

    The toolkit's version is not used, since a machine may have no toolkit or one of another
    version. If CuPy is not loaded, the version is read from the name of the installed CuPy wheel.
    """
    cupy = loaded("cupy")
    if cupy is not None:
        return int(cupy.cuda.runtime.runtimeGetVersion()) // 1000
    path = tuple(folders.import_folders())
    if path not in _installed:
        _installed[path] = next(filter(None, map(_cuda_of_wheel, path)), None)
    return _installed[path]


def _cuda_of_wheel(folder: str) -> int | None:
    try:
        names = os.listdir(folder or ".")
    except OSError:
        return None
    for name in names:
        if name.startswith("cupy_cuda") and name.endswith(".dist-info"):
            digits = name.removeprefix("cupy_cuda").partition("x-")[0]
            if digits.isdecimal():
                return int(digits)
    return None
