"""Kernels written as published CuPy projects write them, unchanged: `rtcompile` for `cupy`, no more.

Sources in files with ``#line`` prepended, types substituted with ``-D``, name expressions from
``dict.values()``, constants through `get_global`, generated source, dynamic shared memory beyond
48 KB. Run it: ``python -m examples.published_styles``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import rtcompile
from rtcompile import RawKernel, RawModule

SOURCES = Path(__file__).parent / "sources"


def read(name: str) -> str:
    """Return a source whose messages name its file."""
    return f'#line 1 "{name}"\n' + (SOURCES / name).read_text()


def axpy(cp: Any, rng: np.random.Generator, size: int = 1001) -> float:
    """Types and operations substituted on the command line."""
    x, y = rng.standard_normal((2, size))
    kernel = RawKernel(read("axpy.cu"), "axpy", options=("-DTYPE=double", "-D OP=fma"))
    result = cp.asarray(y)
    kernel((4,), (128,), (0.5, cp.asarray(x), result, x.size))
    return float(np.abs(result.get() - (0.5 * x + y)).max())


def transpose(cp: Any, rng: np.random.Generator, shape: tuple[int, int] = (37, 91)) -> float:
    """Name expressions from a dict's values; a header beside the source."""
    names = {dtype: f"transpose<{c_type}>" for dtype, c_type in TRANSPOSED.items()}
    module = RawModule(
        code=read("transpose.cu"),
        options=("-std=c++11", f"-I{SOURCES}"),
        name_expressions=names.values(),
    )
    wrong = 0
    for dtype, name in names.items():
        x = rng.uniform(-100, 100, shape).astype(dtype)
        result = cp.empty(x.shape[::-1], dtype)
        grid = tuple(-(-extent // 16) for extent in x.shape[::-1])
        arguments = (cp.asarray(x), result, *map(np.int32, x.shape))
        module.get_function(name)(grid, (16, 16), arguments)
        wrong += int((result.get() != x.T).sum())
    return float(wrong)


TRANSPOSED = {"int8": "signed char", "float32": "float", "complex128": "double2"}


def filter_(cp: Any, rng: np.random.Generator, size: int = 1001, width: int = 17) -> float:
    """Constants and counters through `get_global`."""
    module = RawModule(code=read("filter.cu"))
    kernel = module.get_function("filter")
    x, weights = (rng.standard_normal(count, np.float32) for count in (size, width))
    taps = cp.ndarray(64, np.float32, module.get_global("taps"))
    taps[: weights.size] = cp.asarray(weights)
    result = cp.empty_like(cp.asarray(x))
    calls = cp.ndarray(1, np.uint64, module.get_global("calls"))
    before = int(calls[0])
    for _ in range(2):
        arguments = (cp.asarray(x), result, np.int32(x.size), np.int32(weights.size))
        kernel((-(-x.size // 128),), (128,), arguments)
    assert int(calls[0]) == before + 2
    expected = np.convolve(x.astype(np.float64), weights)[: x.size]
    scale = np.convolve(np.abs(x), np.abs(weights))[: x.size]
    return float((np.abs(result.get() - expected) / scale).max())


def fused(cp: Any, rng: np.random.Generator, size: int = 513) -> float:
    """Source generated from an expression, one kernel per number of arguments."""
    worst = 0.0
    for count in (1, 2, 5):
        arrays = rng.standard_normal((count, size))
        result = cp.empty(size)
        kernel = RawKernel(fused_source(count), f"fused_{count}")
        arguments = (*map(cp.asarray, arrays), result, np.int32(size))
        kernel((-(-size // 256),), (256,), arguments)
        worst = max(worst, float(np.abs(result.get() - np.sin(arrays).sum(axis=0)).max()))
    return worst


def fused_source(count: int) -> str:
    """Write the kernel that adds up the sines of `count` arrays."""
    arguments = ", ".join(f"const double* x{i}" for i in range(count))
    terms = " + ".join(f"sin(x{i}[i])" for i in range(count))
    return f"""
    extern "C" __global__ void fused_{count}({arguments}, double* y, int n) {{
        int i = blockDim.x * blockIdx.x + threadIdx.x;
        if (i < n) y[i] = {terms};
    }}"""


def histogram(cp: Any, rng: np.random.Generator, size: int = 100_003, bins: int = 20_000) -> float:
    """Dynamic shared memory beyond 48 KB, which the kernel's attribute must allow first."""
    values = rng.integers(0, bins, size, dtype=np.uint16)
    kernel = RawKernel(read("histogram.cu"), "histogram", backend="nvrtc")
    kernel.max_dynamic_shared_size_bytes = 4 * bins
    result = cp.zeros(bins, np.uint32)
    kernel((8,), (512,), (cp.asarray(values), result, values.size, bins), shared_mem=4 * bins)
    return float((result.get() != np.bincount(values, minlength=bins)).sum())


# Each with the largest error it may have.
CASES: dict[str, tuple[Callable[[Any, np.random.Generator], float], float]] = {
    "axpy: types by -D": (axpy, 1e-15),
    "transpose: dict.values()": (transpose, 0.0),
    "filter: get_global": (filter_, 1e-6),
    "fused: generated source": (fused, 1e-14),
    "histogram: dynamic shared memory": (histogram, 0.0),
}


def compile_only(arch: str = "sm_90a") -> rtcompile.ObjectCode:
    """Compile the transpose for `arch`, on any machine: no GPU is needed."""
    return rtcompile.compile(
        read("transpose.cu"),
        options=("-std=c++11", f"-I{SOURCES}"),
        arch=arch,
        name_expressions=[f"transpose<{c_type}>" for c_type in TRANSPOSED.values()],
    )


def check(cp: Any) -> dict[str, float]:
    """Run every case against NumPy; return the errors.

    Raises
    ------
    AssertionError
        An error above the case's own.
    """
    rng = np.random.default_rng()
    errors = {}
    for name, (case, tolerance) in CASES.items():
        errors[name] = case(cp, rng)
        assert errors[name] <= tolerance, f"{name}: error {errors[name]:.2e}"
    return errors


if __name__ == "__main__":
    from examples._main import main

    main(compile_only, check)
