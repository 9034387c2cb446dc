"""Chooses the parts of a toolkit so that all are of one version. Pure, given what places hold.

The rule is in `unfit`. It decides about whole folders, because a compiler searches folders: one is
searched only if every part of the toolkit in it has the compiler's version. pip installs ten wheels
of CUDA 13 into one folder. If one wheel is of another version, its headers cannot be left out of a
search of that folder.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rtcompile.toolkit.catalogue import HEADER_PARTS, PARTS
from rtcompile.toolkit.model import version_pair
from rtcompile.toolkit.places import Hit, Place

_MAJOR_OF_WHEELS = {"wheels12": 12, "wheels13": 13}


def unfit(hit: Hit, compiler: Hit) -> Hit | None:
    """Return the part of another version that keeps `hit` from use: itself or one in its folder."""
    together = [hit]
    if hit.part.name in HEADER_PARTS:
        found = (hit.place.look(part) for part in PARTS if part.name in HEADER_PARTS)
        together += [other for other in found if other and other.directory == hit.directory]
    return next((part for part in together if not _goes_with(part, compiler)), None)


def _goes_with(hit: Hit, compiler: Hit) -> bool:
    """Is it of the compiler's major.minor? A part without a version passes within the same place."""
    if hit.part.name == "curand":  # numbered apart from CUDA: 10.3 in 12.9 and in 12.6
        major = _MAJOR_OF_WHEELS.get(hit.place.layout)
        return major in (None, version_pair(compiler.version)[0])
    if not hit.version:
        return hit.place == compiler.place
    own, wanted = version_pair(hit.version), version_pair(compiler.version)
    if hit.part.name == "nvjitlink":  # it links the output of older compilers of its major version
        return own[0] == wanted[0] and own >= wanted
    return own == wanted


@dataclass(frozen=True)
class Toolset:
    """NVRTC of one folder and every part that goes with it."""

    nvrtc: Hit  # the compiler that the other parts are chosen for
    hits: Mapping[str, Hit]
    # By part that exists only in unfit folders: where it is, and the part that makes it unfit.
    rejected: Mapping[str, tuple[Hit, Hit]]

    def lacking(self, spare: Collection[str] = ()) -> list[str]:
        """Return the required parts that are neither in the set nor in `spare`."""
        return [
            part.name
            for part in PARTS
            if part.required and part.name not in self.hits and part.name not in spare
        ]

    def mixes(self, name: str) -> bool:
        """Does NVRTC's own place hold this part in another version?"""
        return name in self.rejected and self.rejected[name][0].place == self.nvrtc.place


def _toolsets(places: Sequence[Place]) -> Iterator[Toolset]:
    for place in places:
        nvrtc = place.look(PARTS[0])
        if nvrtc is None or not nvrtc.version:
            continue
        hits = {"nvrtc": nvrtc}
        rejected: dict[str, tuple[Hit, Hit]] = {}
        for part in PARTS[1:]:
            for other in (place, *(p for p in places if p != place)):
                hit = other.look(part)
                if hit is None:
                    continue
                culprit = unfit(hit, nvrtc)
                if culprit is None:
                    hits[part.name] = hit
                    rejected.pop(part.name, None)
                    break
                rejected.setdefault(part.name, (hit, culprit))
        yield Toolset(nvrtc, hits, rejected)


def choose(places: Sequence[Place], major: int | None, spare: Collection[str]) -> Toolset | None:
    """Return the set that lacks the fewest parts, `spare` ones aside; CUDA `major` goes first."""

    def rank(found: Toolset) -> tuple[bool, int]:
        other_major = major is not None and version_pair(found.nvrtc.version)[0] != major
        return other_major, len(found.lacking(spare))

    return min(_toolsets(places), key=rank, default=None)
