"""Everyday operations of cupy and cupyx, and the arrays that they are applied to.

An operation is an expression that is evaluated with the names of `arrays` for each dtype in turn. The file
cupy_operations.txt lists some. `tasks` adds reductions, casts, and the ufuncs of cupy and of
cupyx.scipy.special in every layout for which CuPy has another kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

EVERY = "?bBhHiIlLqQefdFD"
COMMON = "?ilfdFD"

# Two operands each. CuPy merges the dimensions of contiguous arrays, so one dimension stands for all
# shapes of these; arrays without dimensions, strided and broadcast ones, and scalars are other kernels.
LAYOUTS = (
    *("v, w", "v, n", "s, u", "o, p", "s, n", "a[:, :1], b[:1]", "a, b[0]", "t, b.T", "t, c"),
    *("k[:, ::2, ::2], l[:, ::2, ::2]", "k, l[0, 0]", "v, p", "o, w", "n, w", "o, n", "n, p"),
)
LAYOUTS_OF_ONE = ("v", "s", "o", "k[:, ::2, ::2]")
FOR_EVERY = {"v, w", "v, n", "a, b[0]", "v", "s"}
CORE = """
add subtract multiply true_divide power maximum minimum floor_divide remainder bitwise_and bitwise_or
less less_equal greater greater_equal equal not_equal logical_and logical_or
negative absolute sqrt exp log sin cos tanh square sign isnan isfinite logical_not conjugate floor log1p
rint invert
"""
REDUCTIONS = (
    "sum prod max min mean std var argmax argmin any all nansum nanmax nanmin nanmean",
    "v; v[:64]; o; m; a; a, axis=0; a, axis=1; a, axis=1, keepdims=True; t; t, axis=0; t, axis=1; s; s, axis=0; "
    "s, axis=1; k; k, axis=0; k, axis=1; k, axis=2; k, axis=(0, 1); k, axis=(1, 2); k, axis=(0, 2); "
    "big; big, axis=0; big, axis=1; big.T, axis=0; big.reshape(2, 2, -1), axis=-1; a > b, axis=0",
)
# Reductions of at least 128 contiguous elements are CUB's, with a kernel for each of these sizes.
BY_CUB = "sum max min mean", (128, 256, 512, 1024)
PAIRS = """
fd df if fi id di lf fl ld dl fF Ff dD Dd FD fD il li ie ?f ?l ?d ?i ef fe Bf Bi Bl Il
"""


def arrays(cp: Any, code: str) -> dict[str, Any]:
    """Return the operands of one dtype, of small values, by their names in expressions."""
    numbers = (cp.arange(20000) * 7) % 5 + 1

    def of(*shape: int) -> Any:
        size = 1
        for each in shape:
            size *= each
        return numbers[:size].reshape(shape).astype(code)

    two, three = of(48, 80), of(6, 8, 10)
    return {
        "code": code,
        "n": cp.asarray(2).astype(code).item(),  # a scalar of Python
        # of no, one, two and three dimensions
        "o": of(1).reshape(()),
        "p": of(2)[1:].reshape(()),
        "v": of(1000),
        "w": of(1001)[1:].copy(),
        "x": cp.arange(1000.0) / 7,
        "a": of(48, 40),
        "b": of(49, 40)[1:].copy(),
        "c": of(40, 48),
        "t": of(48, 40).T,
        "s": two[:, ::2],
        "u": two[:, 1::2],
        "k": three,
        "l": three.copy(),
        "big": of(4, 5000),
        "spd": (cp.eye(8) * 9 + cp.ones((8, 8))).astype(code),  # symmetric and positive definite
        # a mask and indices
        "m": numbers[:1000] > 2,
        "i": cp.arange(0, 320, 5),
    }


def written() -> Iterator[tuple[str, str]]:
    """Yield the expressions of cupy_operations.txt, each with all of its dtypes."""
    codes = ""
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        if line.startswith("["):
            codes = line.strip("[]")
        elif line and not line.startswith(";"):
            yield line, codes


def tasks(cp: Any, special: Any) -> Iterator[tuple[str, str]]:
    """Yield every operation as an expression and the dtype of its arrays."""
    for line, codes in (
        *written(),
        *_reductions(),
        *_ufuncs(cp),
        *_special(cp, special),
        *_casts(),
    ):
        yield from ((line, code) for code in codes)


def _reductions() -> Iterator[tuple[str, str]]:
    names, operands = REDUCTIONS
    for name in names.split():
        for of in operands.split("; "):
            yield f"cp.{name}({of})", "?ilefdFD" if name in ("sum", "max", "min") else "lfdD"
    names, sizes = BY_CUB
    for name in names.split():
        for size in sizes:
            yield f"cp.{name}(big.reshape(-1)[:{size * 2}].reshape(2, -1), axis=1)", "ilfdD"


def _ufuncs(cp: Any) -> Iterator[tuple[str, str]]:
    core = CORE.split()
    for name in _names(cp, cp):
        layouts = LAYOUTS_OF_ONE if getattr(cp, name).nin == 1 else LAYOUTS
        if name not in core:
            yield f"cp.{name}({layouts[0]})", f"{COMMON}Be"
            continue
        for layout in layouts:
            yield f"cp.{name}({layout})", EVERY if layout in FOR_EVERY else COMMON
    for pair in PAIRS.split():
        yield f"cp.where(m, v, w.astype({pair[1]!r}))", pair[0]
        for name in core:
            if getattr(cp, name).nin == 2:
                yield f"cp.{name}(v, w.astype({pair[1]!r}))", pair[0]


def _special(cp: Any, special: Any) -> Iterator[tuple[str, str]]:
    for name in _names(cp, special):
        count = getattr(special, name).nin
        # Those of several operands take half a second to compile, and up to six.
        yield f"scipy.special.{name}({', '.join('vwvw'[:count])})", "efdil" if count == 1 else "fd"


def _casts() -> Iterator[tuple[str, str]]:
    for to in EVERY:
        yield f"v.astype({to!r})", EVERY
    for to in COMMON:
        yield f"s.astype({to!r})", EVERY
        yield f"o.astype({to!r})", EVERY


def _names(cp: Any, module: Any) -> list[str]:
    """Return the ufuncs of a module, each by one of its names."""
    names = sorted(n for n in dir(module) if isinstance(getattr(module, n), cp.ufunc))
    return [*{id(getattr(module, n)): n for n in names}.values()]
