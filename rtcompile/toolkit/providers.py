"""Packages that say "these are my headers": found by entry points, without importing any of them.

::

    [project.entry-points."rtcompile.headers"]
    mylib = "mylib.include"

makes the folder ``include`` of the package ``mylib`` part of the search, behind CUDA's headers and
CUTLASS's. Several entries give several folders. Read when the toolkit is searched for: on the first
build after something was installed.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata

from rtcompile.core.request import SearchDir

__all__ = ["GROUP", "Provided", "provided"]

GROUP = "rtcompile.headers"


@dataclass(frozen=True, slots=True)
class Provided:
    """A folder of headers that a package provides.

    Attributes
    ----------
    name : str
        The entry's name.
    package, version : str
        The distribution that it is of.
    directory : str
        The folder, ``""`` if it is not where the package says.
    said : str
        Where the package says that it is.
    """

    name: str
    package: str
    version: str
    directory: str
    said: str

    @property
    def search_dir(self) -> SearchDir:
        """The folder as a part of the search."""
        return SearchDir(f"{SearchDir.PROVIDED}{self.name}", self.directory)


def provided(site_dirs: Sequence[str]) -> Iterator[Provided]:
    """Yield what the packages installed in these folders provide, by name; of two alike the first."""
    found: dict[str, Provided] = {}
    for distribution in metadata.distributions(path=list(site_dirs)):
        # Most packages have no entry of ours: seen without parsing theirs.
        if GROUP not in (distribution.read_text("entry_points.txt") or ""):
            continue
        for entry in distribution.entry_points:
            if entry.group == GROUP:
                directory = _directory(distribution, entry.value)
                package = distribution.metadata["Name"]
                provision = Provided(
                    entry.name, package, distribution.version, directory, entry.value
                )
                found.setdefault(entry.name, provision)
    yield from (found[name] for name in sorted(found))


def _directory(distribution: metadata.Distribution, dotted: str) -> str:
    parts = dotted.split(".")
    candidates = [str(distribution.locate_file(os.path.join(*parts)))]
    try:
        spec = importlib.util.find_spec(parts[0])  # an editable install; not imported
    except (ImportError, ValueError):
        spec = None
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        candidates.append(os.path.join(location, *parts[1:]))
    return next((os.path.abspath(path) for path in candidates if os.path.isdir(path)), "")
