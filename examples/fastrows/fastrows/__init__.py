"""Row-wise softmax and normalisation of CuPy arrays.

A package of kernels: sources as resources, their signatures declared once and checked at each call,
and in the wheel a bundle of their builds. Importing it loads neither CuPy nor a compiler.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rtcompile import KernelLibrary

__all__ = ["normalize", "softmax"]

_library = KernelLibrary(
    __name__, folder="kernels", include_dirs=["include"], bundle="kernels.rtcb"
)
_rows = _library.module(
    "rows.cu",
    {
        f"{kernel}<{element}>": signature.format(T=element)
        for element in ("float", "double", "half")
        for kernel, signature in {
            "softmax": "const {T}* in, {T}* out, int columns",
            "normalize": "const {T}* in, {T}* out, int columns, float epsilon",
        }.items()
    },
)
_THREADS = 256
_ELEMENT = {"float32": "float", "float64": "double", "float16": "half"}


def get_include() -> str:
    """Return the folder of the package's headers, for ``include_dirs=`` of other packages."""
    return str(Path(__file__).parent / "include")


def softmax(x: Any) -> Any:
    """Return softmax over the last axis of a float16, float32 or float64 array."""
    return _by_rows("softmax", x)


def normalize(x: Any, epsilon: float = 1e-5) -> Any:
    """Return `x` with mean 0 and variance 1 over its last axis."""
    return _by_rows("normalize", x, epsilon)


def _by_rows(kernel: str, x: Any, *numbers: float) -> Any:
    import cupy as cp

    element = _ELEMENT.get(x.dtype.name)
    if element is None:
        raise TypeError(f"{x.dtype}: expected one of {', '.join(_ELEMENT)}")
    if x.ndim == 0:
        raise ValueError("x has no dimensions; its last one is what is worked along")
    if x.data.ptr % x.itemsize:
        raise ValueError(
            f"x starts at {x.data.ptr:#x}, no multiple of its elements' {x.itemsize} bytes"
        )
    x = cp.ascontiguousarray(x)
    out = cp.empty_like(x)
    if x.size:
        columns = x.shape[-1]
        arguments = (x, out, columns, *numbers)
        _rows[f"{kernel}<{element}>"]((x.size // columns,), (_THREADS,), arguments)
    return out
