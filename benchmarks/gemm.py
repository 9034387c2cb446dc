"""Measures matrix products on a Hopper GPU: the example's kernel and CUTLASS, built by NVRTC, and cuBLAS.

cuBLAS is called by torch and by CuPy. ``python -m benchmarks.gemm --save``; each row is one dtype,
size and layout of b. All candidates take turns within a round, timed by events on a GPU that is
never idle; medians over the rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks._machine import save
from examples import cutlass_gemm, sm90_gemm

SIZES = (4096, 8192)
ROUNDS = 30


def medians(candidates: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median milliseconds of each candidate."""
    import cupy as cp

    for candidate in candidates.values():
        for _ in range(3):
            candidate()
    events = {name: [] for name in candidates}
    for _ in range(ROUNDS):
        for name, candidate in candidates.items():
            start, stop = cp.cuda.Event(), cp.cuda.Event()
            start.record()
            candidate()
            stop.record()
            events[name].append((start, stop))
    cp.cuda.runtime.deviceSynchronize()
    return {
        name: statistics.median(cp.cuda.get_elapsed_time(*pair) for pair in pairs)
        for name, pairs in events.items()
    }


def measure(dtype: Any, size: int, b_order: str) -> dict[str, object]:
    """Check and time one product of random square matrices."""
    import cupy as cp
    import torch

    a = torch.randn(size, size, device="cuda", dtype=dtype)
    b = torch.randn(size, size, device="cuda", dtype=dtype)
    b = b if b_order == "rows" else b.T
    out = torch.empty_like(a)
    in_cupy = [cp.from_dlpack(tensor) for tensor in (a, b, out)]  # the same memory
    candidates: dict[str, Callable[[], object]] = {
        "cublas": lambda: torch.matmul(a, b, out=out),
        "cupy": lambda: cp.matmul(*in_cupy[:2], out=in_cupy[2]),
        "sm90_gemm": sm90_gemm.bind(a, b, out),
        "cutlass_gemm": cutlass_gemm.bind(a, b, out),
    }
    expected = a.float() @ b.float()
    errors = {}
    for name, candidate in candidates.items():
        out.fill_(float("nan"))
        candidate()
        errors[name] = float((out.float() - expected).norm() / expected.norm())
        assert errors[name] < (4e-3 if dtype is torch.bfloat16 else 5e-4), (name, errors)
    times = medians(candidates)
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "size": size,
        "b": b_order,
        "milliseconds": {name: round(time, 4) for name, time in times.items()},
        "tflops": {name: round(2e-9 * size**3 / time, 1) for name, time in times.items()},
        "of_cublas": {name: round(times["cublas"] / time, 3) for name, time in times.items()},
        "relative_error": {name: float(f"{error:.2g}") for name, error in errors.items()},
    }


if __name__ == "__main__":
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False  # the reference is a float32 product
    save(
        "gemm",
        {
            "torch": torch.__version__,
            "products": [
                measure(dtype, size, b_order)
                for dtype in (torch.float16, torch.bfloat16)
                for size in SIZES
                for b_order in ("rows", "columns")
            ],
        },
    )
