"""Header folders that installed packages declare by entry points; no package is imported.

::

    [project.entry-points."rtcompile.headers"]
    mylib = "mylib.include"

adds the folder ``include`` of the package ``mylib`` to the search path, after CUDA's and CUTLASS's
headers. Several entries give several folders. They are read when the toolkit is searched for, which
is at the first build after an installation.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata

from rtcompile.core.header import PROVIDED, SearchDir

GROUP = "rtcompile.headers"


@dataclass(frozen=True, slots=True)
class Provided:
    """A folder of headers that a package provides."""

    name: str  # the entry's name
    package: str  # the distribution that declares it
    version: str
    directory: str  # "" if the declared one does not exist
    said: str  # the declared folder, as the entry spells it

    @property
    def search_dir(self) -> SearchDir:
        """The folder as an entry of the search path."""
        return SearchDir(f"{PROVIDED}{self.name}", self.directory)


def provided(site_dirs: Sequence[str]) -> Iterator[Provided]:
    """Yield the declared folders of packages in these directories, the first of each name."""
    found: dict[str, Provided] = {}
    for distribution in metadata.distributions(path=list(site_dirs)):
        # Most packages declare none, which a plain search of the text shows without parsing it.
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
        spec = importlib.util.find_spec(
            parts[0]
        )  # for an editable install; this does not import it
    except (ImportError, ValueError):
        spec = None
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        candidates.append(os.path.join(location, *parts[1:]))
    return next((os.path.abspath(path) for path in candidates if os.path.isdir(path)), "")
