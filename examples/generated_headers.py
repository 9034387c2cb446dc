"""Kernels from generated text: a header passed as a string, and a profile of the compile time.

A code generator writes its tile's shape to a header that is a string and not a file. The text is part of the
kernel's key: another shape is another kernel, the same shape is found in the cache. Run it:
``python -m examples.generated_headers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import rtcompile

SOURCE = r"""
#include "generated/tile.cuh"

extern "C" __global__ void sum_tiles(const float* x, float* out) {
    float sum = 0;
    for (int i = 0; i < tile_size; ++i) sum += x[blockIdx.x * tile_size + i];
    out[blockIdx.x] = sum;
}
"""
HEADERS = {"generated/tile.cuh": "#pragma once\nconstexpr int tile_size = 16;\n"}


def headers(tile_size: int) -> dict[str, str]:
    """Return what a generator would write."""
    return {"generated/tile.cuh": f"#pragma once\nconstexpr int tile_size = {tile_size};\n"}


def compile_only(arch: str) -> rtcompile.ObjectCode:
    """Compile for an architecture, without a GPU."""
    return rtcompile.compile(SOURCE, arch=arch, headers=HEADERS, name_expressions=["sum_tiles"])


def check(cp: Any) -> Mapping[str, object]:
    """Return the largest error of two shapes on the GPU, and what a build of the first spends."""
    found: dict[str, object] = {}
    for size in (16, 64):
        kernel = rtcompile.RawKernel(SOURCE, "sum_tiles", headers=headers(size))
        x = cp.random.random(size * 100, dtype=cp.float32)
        out = cp.empty(100, dtype=cp.float32)
        kernel((100,), (1,), (x, out))
        found[f"error, tiles of {size}"] = float(abs(out - x.reshape(100, size).sum(axis=1)).max())
    profile = rtcompile.RawModule(code=SOURCE, headers=HEADERS).profile()
    for phase, milliseconds in profile.phases:
        found[f"{phase}, ms"] = milliseconds
    return found


if __name__ == "__main__":
    from examples._main import main

    main(compile_only, check)
