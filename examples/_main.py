"""What every example does as a script: run on the GPU that is there, or compile for several."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ARCHS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")


def main(
    compile_only: Callable[[str], Any],
    check: Callable[[Any], Mapping[str, object]],
    archs: Sequence[str] = ARCHS,
) -> None:
    """Print ``check(cupy)`` line by line; without a GPU, compile for each of `archs` instead."""
    cp = cupy_with_gpu()
    if cp is None:
        print("no GPU here: compiling only")
        for arch in archs:
            start = time.perf_counter()
            code = compile_only(arch)
            how = f"cache hit ({code.build.hit})" if code.build.hit else code.build.compiler
            milliseconds = 1e3 * (time.perf_counter() - start)
            print(f"  {arch:8} {len(code.code):9,} bytes  {milliseconds:8.1f} ms  {how}")
        return
    for case, value in check(cp).items():
        print(f"  {case:40} {value:.3g}" if isinstance(value, float) else f"  {case:40} {value}")


def cupy_with_gpu() -> Any | None:
    """Return CuPy if it is installed and has a device, else None."""
    try:
        import cupy as cp

        return cp if cp.cuda.runtime.getDeviceCount() else None
    except ImportError:
        return None
    except cp.cuda.runtime.CUDARuntimeError:
        return None
