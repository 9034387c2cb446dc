"""Measures the edit loop within one process, from saving a file to its launch or its machine code.

A `RawModule.from_file` after each edit, for a small, a WMMA and a CuTe kernel and for the example
cute_tiled_copy, with one of its three instances. Each edit adds a line that changes the code;
the clock runs from before the file is written until the device has run it. Without a GPU it runs until the
code exists, for sm_90a. The first edits, during which a precompiled header is created, are listed separately.
``--save`` writes benchmarks/results/edit_to_launch.json (``…_h200.json`` with a GPU).
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rtcompile
from benchmarks import _machine, edit_loop
from examples import cute_tiled_copy

EDITS = int(os.environ.get("EDITS", "4"))
SETTLING = 3  # edits until the precompiled header is there; counted apart
PAUSE = float(os.environ.get("PAUSE", "1"))  # seconds between edits, in which it may be finished

_PLAIN = {kind: text.format(edit=1) for kind, text in edit_loop.SOURCES.items()}
_ONE = cute_tiled_copy.NAME_EXPRESSIONS[:1]
CASES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "small": (_PLAIN["small"], (), ()),
    "WMMA": (_PLAIN["WMMA"], (), ()),
    "CuTe": (_PLAIN["CuTe"], ("-DNDEBUG",), ()),
    "cute_tiled_copy, 1 instance": (cute_tiled_copy.SOURCE, cute_tiled_copy.OPTIONS, _ONE),
}


def launcher(kind: str) -> Callable[[rtcompile.RawModule], object]:
    """Return what launches a module's kernel and waits for it."""
    import cupy

    if kind.startswith("cute_tiled_copy"):
        a, b = (cupy.zeros((128, 64), cupy.float16) for _ in range(2))

        def launch(module: rtcompile.RawModule) -> None:
            cute_tiled_copy.matmul(a, b, _ONE[0], module)
            cupy.cuda.Device().synchronize()

        return launch
    x = cupy.zeros(256, cupy.float32)
    half = cupy.zeros(256, cupy.float16)
    arguments = (half, half, x) if kind == "WMMA" else (x,)

    def launch(module: rtcompile.RawModule) -> None:
        module.get_function("k")((1,), (32,), arguments)
        cupy.cuda.Device().synchronize()

    return launch


def edits(kind: str, folder: str, gpu: bool) -> dict[str, object]:
    source, options, names = CASES[kind]
    file = Path(folder, "kernel.cu")
    more: dict[str, Any] = {} if gpu else {"arch": "sm_90a"}
    act = launcher(kind) if gpu else lambda module: module.object_code
    milliseconds, codes = [], set()
    for edit in range(1 + SETTLING + EDITS):
        time.sleep(PAUSE)
        begin = time.perf_counter()
        file.write_text(f"{source}\n__device__ int edited = {edit};\n")
        module = rtcompile.RawModule.from_file(
            file, options=options, name_expressions=names or None, **more
        )
        act(module)
        milliseconds.append((time.perf_counter() - begin) * 1e3)
        codes.add(module.object_code.code)
    assert len(codes) == len(milliseconds), "an edit was not seen"
    sys.stderr.write(f"{kind}: {[round(took) for took in milliseconds]} ms\n")
    later = milliseconds[1 + SETTLING :]
    return {
        "first build and its edits, ms": [round(took, 1) for took in milliseconds],
        "median ms of an edit, settled": round(statistics.median(later), 1),
        "largest ms of an edit, settled": round(max(later), 1),
        "within a second": max(later) <= 1000,
    }


def main() -> None:
    gpu = _machine.gpus() > 0
    results: dict[str, object] = {}
    for kind in CASES:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["RTCOMPILE_CACHE_DIR"] = os.path.join(folder, "cache")
            results[kind] = edits(kind, folder, gpu)
    until = "launched and ended" if gpu else "built, no GPU"
    load = round(os.getloadavg()[0], 1)
    results = {"from saving until": until, "processes that wanted a core": load, **results}
    _machine.save("edit_to_launch" + "_h200" * gpu, results)


if __name__ == "__main__":
    main()
