"""A record of the kernels that everyday CuPy programs use, for the CuPy that is installed here.

The file of each minor version of CuPy, made by benchmarks/cupy_record.py, has the sources that CuPy generates. It
has no paths, so it is valid for any prefix, architecture and CUDA version.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from rtcompile import InvalidRequest, __version__
from rtcompile.extras.record.recording import Record

FORMAT = "rtcompile kernels of CuPy 1"
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "kernels_of_cupy")
_FILE = re.compile(r"(\d+)\.(\d+)\.json\.xz")


def record(arch: str) -> Record:
    """Return the record of the installed CuPy's kernels for a device."""
    try:
        import cupy
        from cupy._core import core
    except ImportError as error:
        raise InvalidRequest(
            f"CuPy's kernels are built with its headers, and CuPy cannot be imported: {error}"
        ) from None
    here = str(cupy.__version__)
    document = _read(here)
    made_for = document["cupy"]
    if here.split(".")[:2] == made_for.split(".")[:2]:
        made_for = here  # a patch release has the same kernels
    options = {
        own: [*core.assemble_cupy_compiler_options(own), "-ftz=true"]
        for own in {tuple(kernel["options"]) for kernel in document["kernels"]}
    }
    builds = [
        _entry(kernel, options[tuple(kernel["options"])], arch) for kernel in document["kernels"]
    ]
    return Record({"rtcompile": __version__, "cupy": made_for}, builds, {})


def files() -> dict[tuple[int, int], str]:
    """Return the file of each minor version of CuPy whose kernels are known."""
    found = filter(None, map(_FILE.fullmatch, os.listdir(FOLDER)))
    return {(int(name[1]), int(name[2])): os.path.join(FOLDER, name[0]) for name in found}


def _read(version: str) -> dict[str, Any]:
    """Return the kernels of a version of CuPy, or those of the nearest minor version."""
    import lzma

    known = files()
    wanted = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    near = [each for each in known if each[:1] == wanted[:1]]
    if not near:
        names = ", ".join(f"{major}.{minor}" for major, minor in sorted(known))
        raise InvalidRequest(
            f"this is CuPy {version}, and rtcompile knows the kernels of CuPy {names}: record your own "
            "program with `rtcompile run --record kernels.json script.py`"
        )
    nearest = min(near, key=lambda each: abs(each[1] - wanted[1]))
    with lzma.open(known[nearest]) as file:
        document: dict[str, Any] = json.loads(file.read())
    return document


def _entry(kernel: dict[str, Any], options: list[str], arch: str) -> dict[str, Any]:
    """Return a kernel as a build of a record, which CuPy requests with `options`."""
    return {
        "requested": {
            "options": options,
            "arch": arch,
            "in any folder": True,
            "by cupy": True,
            "by a module": False,
        },
        "name": kernel["name"],
        "source": kernel["source"],
        "options": options,
        "arch": arch,
        "follows device": True,
        "name expressions": kernel["names"],
        "backend": "nvrtc",
        "target": "cubin",
        "link": [],
        "given headers": {},
        "headers": [],
        "built by": "",
        "milliseconds": kernel["milliseconds"],
    }
