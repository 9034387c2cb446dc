"""The choice: parts of one version, and never a mix. Pure, given what the places hold."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rtcompile.toolkit.catalogue import PARTS
from rtcompile.toolkit.model import version_pair
from rtcompile.toolkit.places import Hit, Place

__all__ = ["Toolset", "choose"]


@dataclass(frozen=True)
class Toolset:
    """NVRTC of one place and every part that goes with it."""

    nvrtc: Hit
    hits: Mapping[str, Hit]
    rejected: Mapping[str, Hit]  # parts that are only there in another version

    def lacking(self, spare: Collection[str]) -> int:
        """Count the required parts that neither the set has nor somebody else can spare."""
        return sum(
            part.required and part.name not in self.hits and part.name not in spare
            for part in PARTS
        )

    def mixes(self, name: str) -> bool:
        """Does NVRTC's own place hold this part in another version?"""
        return name in self.rejected and self.rejected[name].place == self.nvrtc.place


def _toolsets(places: Sequence[Place]) -> Iterator[Toolset]:
    for place in places:
        nvrtc = place.look(PARTS[0])
        if nvrtc is None or not nvrtc.version:
            continue
        hits = {"nvrtc": nvrtc}
        rejected: dict[str, Hit] = {}
        for part in PARTS[1:]:
            for other in (place, *(p for p in places if p != place)):
                hit = other.look(part)
                if hit is None:
                    continue
                if hit.goes_with(nvrtc):
                    hits[part.name] = hit
                    rejected.pop(part.name, None)
                    break
                rejected.setdefault(part.name, hit)
        yield Toolset(nvrtc, hits, rejected)


def choose(places: Sequence[Place], major: int | None, spare: Collection[str]) -> Toolset | None:
    """Return the first of the sets that lack least, one of CUDA `major` before all others.

    `spare` names the parts that somebody else can lend.
    """

    def rank(found: Toolset) -> tuple[bool, int]:
        other_major = major is not None and version_pair(found.nvrtc.version)[0] != major
        return other_major, found.lacking(spare)

    return min(_toolsets(places), key=rank, default=None)
