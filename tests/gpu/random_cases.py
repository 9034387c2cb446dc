"""Every example kernel at random shapes, strides and dtypes, in guarded memory, against float64.

Each function draws one case, runs it and returns its error. If the example may reject an argument,
the case passes if the example's own code raises TypeError or ValueError, or if the result is right.
 ``python -m tests.gpu.random_cases wmma_gemm --count 200``
prints the outcome as JSON; `benchmarks.examples_random` does it for all, under compute-sanitizer too.
"""

import argparse
import functools
import json
import math
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cupy as cp
import numpy as np

import rtcompile
from examples import (
    complex_numbers,
    curand_pi,
    cute_tiled_copy,
    cutlass_gemm,
    layout_conversion,
    pipelined_matmul,
    published_styles,
    reductions,
    sm90_gemm,
    wmma_gemm,
)
from rtcompile import errors
from tests.gpu import async_tiles
from tests.gpu.guarded import GuardedMemory

EXAMPLES = Path(sm90_gemm.__file__).parent
sys.path.append(str(EXAMPLES / "fastrows"))


@dataclass(frozen=True)
class Outcome:
    """A case and its error as a multiple of `scale`, or that the example rejected it."""

    what: str
    error: float = 0.0
    tolerance: float = 0.0
    rejected: bool = False


class Draw:
    """Random choices, and guarded memory for the arrays."""

    def __init__(self, seed: Sequence[int], largest: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.memory = GuardedMemory()
        self.largest = largest

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def size(self, tile: int = 32) -> int:
        """Return an extent: tiny, any, or about a whole number of tiles."""
        way = self.rng.integers(3)
        if way == 0:
            return int(self.rng.integers(1, 9))
        if way == 1:
            return int(math.exp(self.rng.uniform(0, math.log(self.largest))))
        tiles = int(self.rng.integers(1, max(2, self.largest // tile + 1)))
        return tile * tiles + int(self.rng.integers(-1, 2))

    def values(self, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
        if np.dtype(dtype).kind in "iu":
            limits = np.iinfo(dtype)
            low, high = max(limits.min, -1000), min(limits.max, 1000)
            return self.rng.integers(low, high + 1, shape, dtype=dtype)
        return self.rng.standard_normal(shape).astype(dtype)

    def place(self, name: str, values: np.ndarray, *, multiple: int = 0) -> Any:
        """Put an array into memory; with `multiple`, the distance of its rows is a multiple of it."""
        if not multiple:
            return self.memory.place(name, values, start=int(self.rng.integers(9)))
        return self.memory.place(name, values, **self.layout(values.shape[1], multiple))

    def layout(self, columns: int, multiple: int) -> dict[str, int]:
        pitch = -(-columns // multiple) + self.pick((0, 0, 1, 5))
        return {"pitch": pitch * multiple, "start": multiple * int(self.rng.integers(5))}


# Views of an array that an example may reject.
VIEWS: dict[str, Callable[[Any], Any]] = {
    "a row of {}": lambda x: x[0],
    "a stack of {}": lambda x: x[None],
    "no rows of {}": lambda x: x[:0],
    "no columns of {}": lambda x: x[:, :0],
    "every other row of {}": lambda x: x[::2],
    "every other column of {}": lambda x: x[:, ::2],
    "the rows of {} backwards": lambda x: x[::-1],
    "the columns of {} backwards": lambda x: x[:, ::-1],
    "{} without its first row": lambda x: x[1:],
    "{} without its first column": lambda x: x[:, 1:],
    "{} transposed": lambda x: x.T,
    "the first row of {}, repeated": lambda x: cp.broadcast_to(x[:1], x.shape),
    "{} as another type": lambda x: x.view({1: "u1", 2: "i2", 4: "u4", 8: "i8"}[x.itemsize]),
}


def between_elements(x: Any) -> Any:
    """Return a view that starts in the middle of an element, which no kernel can read."""
    columns = max(1, x.shape[1] - 1)
    return cp.ndarray((x.shape[0], columns), x.dtype, x.data + 1, x.strides)


def off_by(got: np.ndarray, expected: np.ndarray, scale: np.ndarray | float) -> float:
    """Return the largest error over the scale; infinity for another shape, and for NaN."""
    if got.shape != expected.shape:
        return math.inf
    errors = np.abs(got.astype(np.float64) - expected) / (scale + np.finfo(np.float64).tiny)
    worst = float(errors.max(initial=0.0))
    return math.inf if math.isnan(worst) else worst


def rejected_by_example(error: Exception) -> bool:
    """Return whether an example's own code raised the error, or a public function of rtcompile that it called."""
    files = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    if isinstance(error, rtcompile.InvalidRequest) and files[-1] == errors.__file__:
        files.pop()  # the frame through which every public function raises errors
    return isinstance(error, (TypeError, ValueError)) and Path(files[-1]).is_relative_to(EXAMPLES)


def attempt(
    draw: Draw,
    what: str,
    arrays: tuple[Any, ...],
    run: Callable[..., Any],
    compare: Callable[..., float],
    tolerance: float,
) -> Outcome:
    """Run on the arrays; in one of five cases, one of them is another view."""
    arrays, legal, readable = (*arrays,), True, True
    if draw.chance(0.2):
        index, legal = int(draw.rng.integers(len(arrays))), False
        name = f"array {index}"
        if arrays[index].itemsize > 1 and draw.chance(0.1):
            readable, changed = False, between_elements(arrays[index])
            what += f", {name} between two elements"
        else:
            label = draw.pick(list(VIEWS))
            changed = VIEWS[label](arrays[index])
            what += ", " + label.format(name)
        arrays = (*arrays[:index], changed, *arrays[index + 1 :])
    try:
        got = run(*arrays)
    except Exception as error:
        if legal or not rejected_by_example(error):
            raise
        draw.memory.check()
        return Outcome(what, rejected=True)
    assert readable, f"{what}: not rejected"
    return Outcome(what, compare(got, *arrays), tolerance)


def product(
    draw: Draw,
    what: str,
    operands: tuple[Any, Any],
    multiply: Callable[[Any, Any], Any],
    tolerance: float,
    *,
    widen: Callable[[np.ndarray], np.ndarray] = lambda x: x.astype(np.float64),
    smallest: float = 0.0,
) -> Outcome:
    """Multiply; errors are relative to |a| @ |b| (or `smallest`), element by element."""

    def compare(got: Any, a: Any, b: Any) -> float:
        left, right = widen(a.get()), widen(b.get())
        result = widen(got.get()) if got.dtype == a.dtype else got.get()
        return off_by(result, left @ right, np.maximum(np.abs(left) @ np.abs(right), smallest))

    return attempt(draw, what, operands, multiply, compare, tolerance)


@functools.cache
def loaded(example: Any, **arguments: Any) -> rtcompile.RawModule:
    return example.load(**arguments)


def run_wmma_gemm(draw: Draw) -> Outcome:
    operand, jitify = draw.pick(list(wmma_gemm.OPERANDS)), draw.chance(0.2)
    m, n, k = draw.size(16), draw.size(16), draw.size(16)
    shapes = ((m, k), (k, n))
    a, b = (
        draw.place("an operand", wmma_gemm.random_operand(draw.rng, operand, shape))
        for shape in shapes
    )
    widen = wmma_gemm.from_bfloat16 if operand == "bfloat16" else lambda x: x.astype(np.float64)
    return product(
        draw,
        f"{operand} {m}x{n}x{k}" + (", jitify" if jitify else ""),
        (a, b),
        lambda a, b: wmma_gemm.matmul(a, b, operand, loaded(wmma_gemm, jitify=jitify)),
        wmma_gemm.OPERANDS[operand].tolerance,
        widen=lambda x: widen(x).astype(np.float64),
    )


def run_cute_tiled_copy(draw: Draw) -> Outcome:
    expression = draw.pick(cute_tiled_copy.NAME_EXPRESSIONS)
    m, n, k = draw.size(128), draw.size(64), draw.size(32)
    a, b = (draw.place("an operand", draw.values("float16", shape)) for shape in ((m, k), (n, k)))

    def compare(got: Any, a: Any, b: Any) -> float:
        left, right = a.get().astype(np.float64), b.get().astype(np.float64).T
        return off_by(got.get(), left @ right, np.abs(left) @ np.abs(right) + 1e-4)

    def multiply(a: Any, b: Any) -> Any:
        return cute_tiled_copy.matmul(a, b, expression, loaded(cute_tiled_copy))

    return attempt(draw, f"{expression} {m}x{n}x{k}", (a, b), multiply, compare, 5e-4)


def run_pipelined_matmul(draw: Draw) -> Outcome:
    dtype, stages = draw.pick(list(pipelined_matmul.TYPES)), draw.pick(pipelined_matmul.STAGES)
    m, n, k = draw.size(32), draw.size(32), draw.size(16)
    step = draw.pick((1, 2, 4, 8, 16))
    a, b = (
        draw.place("an operand", draw.values(dtype, shape), multiple=step)
        for shape in ((m, k), (k, n))
    )
    return product(
        draw,
        f"{dtype} {m}x{n}x{k}, {stages} stages, rows at multiples of {step}",
        (a, b),
        lambda a, b: pipelined_matmul.matmul(a, b, stages=stages),
        pipelined_matmul.TYPES[dtype][2],
    )


def hopper(draw: Draw, example: Any) -> Outcome:
    """Multiply by a kernel that reads through TMA: CuPy's float16, or torch's bfloat16."""
    m, n, k = draw.size(128), draw.size(256), draw.size(64)
    order, bfloat16 = draw.pick(("rows", "columns")), draw.chance(0.4)
    what = f"{m}x{n}x{k}, b by {order}"
    b_shape = (k, n) if order == "rows" else (n, k)
    stored = sm90_gemm.stored_columns(n)
    room = draw.memory.room("out", np.empty((m, stored), np.int16), **draw.layout(n, 8))
    if not bfloat16:
        a, b = (
            draw.place("an operand", draw.values("float16", shape), multiple=8)
            for shape in ((m, k), b_shape)
        )
        out = room.view(np.float16) if draw.chance(0.5) else None
        b = b if order == "rows" else b.T
        multiply = functools.partial(example.matmul, out=out)
        return product(draw, "float16 " + what, (a, b), multiply, 5e-4, smallest=1e-3)

    import torch

    bits = [
        wmma_gemm.random_operand(draw.rng, "bfloat16", shape).view(np.int16)
        for shape in ((m, k), b_shape)
    ]
    a, b, out = (
        torch.as_tensor(array, device="cuda").view(torch.bfloat16)
        for array in (*(draw.place("an operand", x, multiple=8) for x in bits), room)
    )
    example.matmul(a, b if order == "rows" else b.T, out=out)
    torch.cuda.synchronize()
    left, right, got = (
        wmma_gemm.from_bfloat16(x.view(np.uint16)).astype(np.float64)
        for x in (*bits, room.get()[:, :n])
    )
    right = right if order == "rows" else right.T
    error = off_by(got, left @ right, np.abs(left) @ np.abs(right))
    return Outcome("bfloat16 " + what, error, 4e-3)


@functools.cache
def build_cutlass() -> None:
    """Build all instances together, since each takes half a minute and all will be drawn."""
    orders = ("RowMajor", "ColumnMajor")
    modules = [cutlass_gemm.load(dtype, order) for dtype in cutlass_gemm.TYPES for order in orders]
    rtcompile.compile_many(modules, progress=False)


def run_cutlass_gemm(draw: Draw) -> Outcome:
    build_cutlass()
    return hopper(draw, cutlass_gemm)


def run_layout_conversion(draw: Draw) -> Outcome:
    rows, per_thread, scratch = draw.pick(layout_conversion.CASES)
    columns = draw.size(128)
    x = draw.place("x", draw.values("float32", (rows, columns)))

    def compare(got: Any, x: Any) -> float:
        wide = x.get().astype(np.float64)
        expected = np.broadcast_to(wide.sum(axis=1, keepdims=True), wide.shape)
        return off_by(got.get(), expected, np.abs(wide).sum(axis=1, keepdims=True))

    def run(x: Any) -> Any:
        return layout_conversion.broadcast_sums(x, per_thread, scratch, loaded(layout_conversion))

    what = f"{rows} rows, {per_thread} a thread, scratch {scratch}, {columns} columns"
    return attempt(draw, what, (x,), run, compare, 1e-6)


def run_reductions(draw: Draw) -> Outcome:
    if draw.chance(0.25):
        size = draw.size() * draw.size()
        values = draw.rng.random(size) + 0.1
        x = draw.memory.room("x", values, start=int(draw.rng.integers(9)))
        x.set(values)
        reductions.normalise(x, loaded(reductions, enable_cooperative_groups=True))
        return Outcome(
            f"normalise {size}", off_by(x.get(), values / values.sum(), 1 / values.sum()), 1e-12
        )
    method, dtype = draw.pick(reductions.METHODS), draw.pick(list(reductions.TYPES))
    rows, columns = draw.size(), draw.size(256) * draw.pick((1, 1, 7))
    x = draw.place("x", draw.values(dtype, (rows, columns)))

    def compare(got: Any, x: Any) -> float:
        wide = x.get().astype(np.float64)
        return off_by(got.get(), wide.sum(axis=1), np.abs(wide).sum(axis=1) + 1e-30)

    def run(x: Any) -> Any:
        return reductions.row_sums(x, method, loaded(reductions))

    tolerance = {"float32": 1e-6, "float64": 1e-14, "int32": 0.0}[dtype]
    return attempt(draw, f"{method} {dtype} {rows}x{columns}", (x,), run, compare, tolerance)


def run_published_styles(draw: Draw) -> Outcome:
    label, (case, tolerance) = draw.pick(list(published_styles.CASES.items()))
    sizes: dict[str, Any] = {"size": draw.size() * draw.size()}
    if case is published_styles.transpose:
        sizes = {"shape": (draw.size(16), draw.size(16))}
    elif case is published_styles.filter_:
        sizes["width"] = int(draw.rng.integers(1, 65))
    elif case is published_styles.histogram:
        sizes["bins"] = int(draw.rng.integers(1, 56_000))
    return Outcome(f"{label} {sizes}", case(cp, draw.rng, **sizes), tolerance)


def run_complex_numbers(draw: Draw) -> Outcome:
    size, steps = draw.size() * draw.size(), int(draw.rng.integers(1, 12))
    errors = complex_numbers.check(cp, size, steps)
    single = max(error for name, error in errors.items() if "float" in name)
    double = max(error for name, error in errors.items() if "float" not in name)
    return Outcome(f"{size} numbers, {steps} steps", max(single / 1e-6, double / 1e-14), 1.0)


def run_curand_pi(draw: Draw) -> Outcome:
    blocks, per_thread = int(draw.rng.integers(1, 300)), 2 * int(draw.rng.integers(1, 500))
    darts = blocks * curand_pi.THREADS * per_thread
    value = curand_pi.estimate(int(draw.rng.integers(2**63)), blocks, per_thread)
    deviation = math.sqrt(math.pi * (4 - math.pi) / darts)
    return Outcome(f"{blocks} blocks, {per_thread} darts", abs(value - math.pi) / deviation, 6.0)


def run_fastrows(draw: Draw) -> Outcome:
    import fastrows

    dtype, kernel = draw.pick(("float16", "float32", "float64")), draw.pick(fastrows.__all__)
    shape = tuple(int(draw.rng.integers(1, 5)) for _ in range(draw.rng.integers(3)))
    shape = (*shape, draw.size(), draw.size(256))
    x = draw.place("x", (3 + 2 * draw.values("float64", shape)).astype(dtype))
    x = draw.pick((x, x, x.T, x[..., ::-1], x[..., ::2], x[:0], x[..., 0], x[0, ..., None]))
    wide = x.get().astype(np.float64)
    got = getattr(fastrows, kernel)(x).get()
    what = f"{kernel} {dtype} {x.shape}, strides {x.strides}"
    if not x.size:
        return Outcome(what, 0.0 if got.shape == x.shape else math.inf, 0.0)
    if kernel == "softmax":
        powers = np.exp(wide - wide.max(axis=-1, keepdims=True))
        expected = powers / powers.sum(axis=-1, keepdims=True)
        tolerance = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}[dtype]
        # Below float16's normal numbers, the error is half of the smallest one.
        scale = np.maximum(expected, 1e-4 if dtype == "float16" else 0.0)
        return Outcome(what, off_by(got, expected, scale), tolerance)
    mean = wide.mean(axis=-1, keepdims=True)
    factor = 1 / np.sqrt(wide.var(axis=-1, keepdims=True) + float(np.float32(1e-5)))
    expected = (wide - mean) * factor
    tolerance = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}[dtype]
    # The errors from rounding the mean and the result.
    return Outcome(what, off_by(got, expected, np.abs(mean) * factor + 1), tolerance)


def run_async_copy(draw: Draw) -> Outcome:
    what, wrong = async_tiles.run(draw)
    return Outcome(what, float(wrong), 0.0)


CASES: dict[str, Callable[[Draw], Outcome]] = {
    "wmma_gemm": run_wmma_gemm,
    "cute_tiled_copy": run_cute_tiled_copy,
    "sm90_gemm": functools.partial(hopper, example=sm90_gemm),
    "cutlass_gemm": run_cutlass_gemm,
    "layout_conversion": run_layout_conversion,
    "pipelined_matmul": run_pipelined_matmul,
    "reductions": run_reductions,
    "published_styles": run_published_styles,
    "complex_numbers": run_complex_numbers,
    "curand_pi": run_curand_pi,
    "fastrows": run_fastrows,
    "async_copy": run_async_copy,
}
# The largest extent drawn, for which a float64 reference on the host takes a few milliseconds.
LARGEST = {"sm90_gemm": 2500, "cutlass_gemm": 2500}
FATAL = (cp.cuda.runtime.CUDARuntimeError, cp.cuda.driver.CUDADriverError, rtcompile.RtcompileError)
HOPPER = ("sm90_gemm", "cutlass_gemm")


def run(example: str, count: int, *, seed: int = 1, largest: int = 0) -> dict[str, Any]:
    """Run `count` cases; return the number rejected, the largest error, and the failures."""
    rejected, worst, failures = 0, (0.0, ""), []
    for index in range(count):
        draw = Draw((seed, index), largest or LARGEST.get(example, 500))
        try:
            with cp.cuda.using_allocator(draw.memory.allocate):
                outcome = CASES[example](draw)
            draw.memory.check()
            assert outcome.error <= outcome.tolerance, (
                f"{outcome.what}: error {outcome.error:.2e}, tolerance {outcome.tolerance:.0e}"
            )
        except Exception as error:
            failures.append(f"case {index}: {type(error).__name__}: {error}")
            if isinstance(error, FATAL):
                break  # the context is gone, or there is nothing to run
            continue
        rejected += outcome.rejected
        if outcome.tolerance:
            worst = max(worst, (outcome.error / outcome.tolerance, outcome.what))
    return {
        "example": example,
        "cases": count,
        "refused": rejected,
        "worst_error_of_tolerance": round(worst[0], 3),
        "worst_case": worst[1],
        "failures": failures,
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("example", choices=CASES)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--largest", type=int, default=0)
    arguments = parser.parse_args()
    report = run(arguments.example, arguments.count, seed=arguments.seed, largest=arguments.largest)
    print(json.dumps(report))
    return 1 if report["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
