"""Tests whether profiles add up, and which template they name first, for four sources.

Each source is profiled ROUNDS times and compiled as often without a profile, in turns; then built with
the precompiled header of its includes. The quickest round is shown, since other processes disturb it least.
No GPU is needed.
`--save` writes benchmarks/results/profile_sums.json.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

import rtcompile
from benchmarks._machine import save
from examples import cute_tiled_copy
from rtcompile.build import pipeline
from rtcompile.extras.devtools import Profile
from rtcompile.settings import Settings

ARCH = "sm_90a"
ROUNDS = int(os.environ.get("ROUNDS", "3"))
SOURCES = {
    "plain": 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= 2; }\n',
    "CUB reduction": """
#include <cub/block/block_reduce.cuh>
extern "C" __global__ void k(const float* x, float* sum) {
    using Reduce = cub::BlockReduce<float, 128>;
    __shared__ typename Reduce::TempStorage storage;
    const float total = Reduce(storage).Sum(x[threadIdx.x]);
    if (threadIdx.x == 0) *sum = total;
}
""",
    "CuTe": """
#include <cute/tensor.hpp>
extern "C" __global__ void k(float* x) {
    auto tensor = cute::make_tensor(cute::make_gmem_ptr(x), cute::Layout<cute::Shape<cute::_8, cute::_4>>{});
    tensor(threadIdx.x) *= 2;
}
""",
}


def requests() -> dict[str, rtcompile.CompileRequest]:
    of = {name: rtcompile.CompileRequest(source, arch=ARCH) for name, source in SOURCES.items()}
    example = rtcompile.CompileRequest(
        cute_tiled_copy.SOURCE,
        arch=ARCH,
        options=cute_tiled_copy.OPTIONS,
        name_expressions=cute_tiled_copy.NAME_EXPRESSIONS[:1],
    )
    return {
        **of,
        "example cute_tiled_copy, 1 instance": example,
    }


def with_a_header(request: rtcompile.CompileRequest) -> float | None:
    """Return the milliseconds of a build once the precompiled header of its includes is there."""

    def edited(edit: int) -> float:
        source = f"{request.source}\n__device__ int edit{edit};\n"
        begin = time.perf_counter()
        pipeline.build(request.replace(source=source), Settings.from_environ())
        return (time.perf_counter() - begin) * 1e3

    headers = Path(os.environ["RTCOMPILE_CACHE_DIR"], "pch")
    before = set(headers.glob("*.pch"))
    edited(0), edited(1), edited(2)  # the header is made beside the second build
    if set(headers.glob("*.pch")) == before:
        return None
    return min(edited(3 + edit) for edit in range(2 * ROUNDS))


def main() -> None:
    results: dict[str, dict[str, object]] = {}
    for name, request in requests().items():
        profiles, plain = [], []
        for _ in range(ROUNDS):
            profiles.append(Profile.of(request, Settings.from_environ()))
            begin = time.perf_counter()
            pipeline.build(request, Settings.from_environ().override(pch=False, recompile=True))
            plain.append((time.perf_counter() - begin) * 1e3)
        found = min(profiles, key=lambda each: each.milliseconds)
        results[name] = {
            "wall ms": round(found.milliseconds, 1),
            "phases / wall": round(sum(ms for _, ms in found.phases) / found.milliseconds, 4),
            "compiled without a profile, least ms": round(min(plain), 1),
            "phases": {phase: round(ms, 1) for phase, ms in found.phases},
            "templates": [[each.name, round(each.own, 1)] for each in found.templates[:3]],
        }
        if "#include" in request.source:
            took = with_a_header(request)
            results[name]["compiled with a precompiled header, least ms"] = took and round(took, 1)
        print(name, results[name], file=sys.stderr)
    save("profile_sums", results)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["RTCOMPILE_CACHE_DIR"] = folder
        main()
