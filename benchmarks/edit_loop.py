"""Measures the edit loop of programs: edit a kernel, run the program in a new process, edit it again.

Ten edits each of a small kernel, a WMMA kernel and a CuTe kernel, compiled for sm_90 and not run.
rtcompile with and without precompiled headers, and NVRTC in process as CuPy calls it, take turns
edit by edit. The whole process is measured. ``pause`` is the time between two edits, during which a
precompiled header may be finished. Nobody edits faster. ``--save`` writes
benchmarks/results/edit_loop.json.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import _machine

EDITS = int(os.environ.get("EDITS", "10"))
PAUSE = float(os.environ.get("PAUSE", "2"))  # seconds

SOURCES = {
    "small": 'extern "C" __global__ void k(float* x) {{ x[threadIdx.x] += {edit}.0f; }}',
    "WMMA": r"""
#include <mma.h>
#include <cuda_fp16.h>
using namespace nvcuda;
extern "C" __global__ void k(const half* a, const half* b, float* c) {{
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, {edit}.0f);
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, 16);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}}
""",
    "CuTe": r"""
#include <cute/tensor.hpp>
using namespace cute;
extern "C" __global__ void k(float* x) {{
    auto t = make_tensor(make_gmem_ptr(x), Layout<Shape<_8, _4>, Stride<_1, _8>>{{}});
    x[threadIdx.x] = t(threadIdx.x % 8, 1) + {edit}.0f;
}}
""",
}

CHILD = r"""
import json, sys
who, source, folders = json.load(sys.stdin)
if who == "NVRTC in process":
    from cupy.cuda.compiler import _NVRTCProgram
    given = ("-std=c++17", "-default-device", "-arch=sm_90", "-DNDEBUG",
             *("-I" + folder for folder in folders))
    code = _NVRTCProgram(source, "k.cu", method="cubin").compile(given)[0]
else:
    import rtcompile
    code = rtcompile.compile(
        source, arch="sm_90", options=["-DNDEBUG"], pch=who == "rtcompile"
    ).code
assert code
"""

CONTENDERS = ("NVRTC in process", "rtcompile without precompiled headers", "rtcompile")


def run(who: str, source: str, cache: str, folders: list[str]) -> float:
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps([who, source, folders]),
        env={**os.environ, "RTCOMPILE_CACHE_DIR": os.path.join(cache, who.replace(" ", "-"))},
        text=True,
        check=True,
    )
    return (time.perf_counter() - begin) * 1e3


def edits(kind: str, folders: list[str]) -> dict[str, object]:
    walls: dict[str, list[float]] = {who: [] for who in CONTENDERS}
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as cache:
        for edit in range(EDITS):
            for who in CONTENDERS:
                walls[who].append(run(who, SOURCES[kind].format(edit=edit), cache, folders))
                time.sleep(PAUSE)
        headers = len(list(Path(cache, "rtcompile", "pch").glob("*.pch")))
    without = statistics.median(walls[CONTENDERS[1]][2:])
    in_process = statistics.median(walls[CONTENDERS[0]][2:])
    ours = statistics.median(walls["rtcompile"][2:])
    return {
        "other processes that wanted a core when it began": load,
        "whole process ms, edit by edit": {
            who: [round(wall, 1) for wall in of] for who, of in walls.items()
        },
        "precompiled headers there at the end": headers,
        "ratio to without precompiled headers, from the third edit on": round(ours / without, 3),
        "ratio to NVRTC in process, from the third edit on": round(ours / in_process, 3),
    }


def main() -> None:
    from rtcompile import toolkit

    search = toolkit.current().search
    wanted = ("forward", "cudart", "crt", "cccl", "cutlass")
    folders = [directory.path for directory in search if directory.label in wanted]
    _machine.save("edit_loop", {kind: edits(kind, folders) for kind in SOURCES})


if __name__ == "__main__":
    main()
