"""Doctor's checks of the toolkit: its parts, their versions, and whether they go together."""

from __future__ import annotations

import os
from collections.abc import Iterator

from rtcompile.doctor.check import Check
from rtcompile.settings import Settings
from rtcompile.toolkit import Toolchain
from rtcompile.toolkit.catalogue import PARTS

# part -> the status of a check when it is missing
_PARTS = {
    "nvrtc": "error",
    "cudart": "error",
    "crt": "error",
    "cccl": "error",
    "nvjitlink": "note",
    "cudadevrt": "note",
    "nvcc": "note",
    "host_compiler": "note",
    "cutlass": "note",
    "curand": "note",
    "cupy": "note",
}


def checks(settings: Settings, toolchain: Toolchain) -> Iterator[Check]:
    """Report every part, then every problem that is not yet reported."""
    told = []
    for part, gravity in _PARTS.items():
        if part in toolchain.missing:
            fact, step = _split(toolchain.missing[part])
            # If there is another compiler, this is a warning and no error.
            instead = part == "nvrtc" and toolchain.nvcc is not None
            status = "warning" if instead else gravity
            if status == "note" and toolchain.missing[part] in toolchain.problems:
                status = "warning"  # it is installed, in an unusable version
            yield Check(_name(part), status, fact, step)
            told.append(toolchain.missing[part])
            continue
        version, via = toolchain.versions.get(part, ""), toolchain.found_via.get(part, "")
        found = [text for text in (version, via, _place(part, toolchain)) if text]
        if found:
            yield Check(_name(part), "ok", ", ".join(found))
    # Missing parts are reported above. The other problems are about parts that have a replacement,
    # except for NVRTC without its builtins library.
    halved = toolchain.nvrtc is not None and not toolchain.nvrtc.preload
    for directory in toolchain.search:
        if directory.is_provided:
            version, via = toolchain.versions[directory.label], toolchain.found_via[directory.label]
            yield Check(directory.label, "ok", f"{version}, {via}, {directory.path}")
    for problem in toolchain.problems:
        if problem not in told:
            fact, step = _split(problem)
            fatal = halved and "libnvrtc-builtins" in problem
            yield Check("toolkit", "error" if fatal else "warning", fact, step)


def _name(part: str) -> str:
    return "cupy headers" if part == "cupy" else part.replace("_", " ")


def _place(part: str, toolchain: Toolchain) -> str:
    found = getattr(toolchain, part, None)
    if found is not None:
        return found if isinstance(found, str) else str(found.path)
    labelled = next((d.path for d in toolchain.search if d.label == part), "")
    return labelled or _read_from(part, toolchain)


def _read_from(part: str, toolchain: Toolchain) -> str:
    """Return the folder from which builds read a part that shares its folder with others."""
    markers = [marker for each in PARTS if each.name == part for marker in each.markers]
    return next(
        (d.path for d in toolchain.search for m in markers if os.path.isfile(f"{d.path}/{m}")), ""
    )


def _split(text: str) -> tuple[str, str]:
    """Split "fact. Next step." into the fact and the step."""
    head, mark, rest = text.partition(". ")
    return (f"{head}.", rest) if mark else (text, "")
