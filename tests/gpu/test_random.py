"""Two hundred random cases of every example in guarded memory, and sizes at known limits."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest

cp = pytest.importorskip("cupy")

from tests.gpu import random_cases  # noqa: E402
from tests.gpu.guarded import GuardedMemory  # noqa: E402


def require_hopper() -> None:
    if cp.cuda.Device().compute_capability != "90":
        pytest.skip("needs compute capability 9.0")


@pytest.mark.parametrize("example", random_cases.CASES)
def test_random_cases_are_right_or_rejected_and_touch_nothing_else(example):
    if example in random_cases.HOPPER:
        require_hopper()
        pytest.importorskip("torch")
    report = random_cases.run(example, 200)
    assert not report["failures"], "\n".join(report["failures"])


def ones(rows: int, columns: int) -> Any:
    return cp.ones((rows, columns), cp.float16)


@pytest.mark.parametrize("tiles_n", [1, 2, 3, 5, 6, 8])
def test_cutlass_runs_for_every_number_of_tiles(tiles_n):
    require_hopper()
    from examples import cutlass_gemm

    n = 256 * tiles_n
    for tiles_m in range(1, 37):
        product = cutlass_gemm.matmul(ones(128 * tiles_m, 8), ones(8, n))
        assert bool((product == 8).all()), f"{tiles_m} x {tiles_n} tiles"


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        *((m, 256, 64) for m in (128, 384, 512, 640, 768, 896, 1152, 1280, 4104, 4224)),
        (4104, 136, 4096),
        (2048, 8, 128),
        (640, 512, 64),
        (12_800, 4352, 64),
    ],
)
def test_cutlass_runs_with_tile_counts_that_are_not_powers_of_two(m, n, k):
    require_hopper()
    from examples import cutlass_gemm

    a = cp.random.standard_normal((m, k), dtype=cp.float32).astype(cp.float16)
    b = cp.random.standard_normal((k, n), dtype=cp.float32).astype(cp.float16)
    wide = a.astype(cp.float64), b.astype(cp.float64)
    scale = abs(wide[0]) @ abs(wide[1])
    error = abs(cutlass_gemm.matmul(a, b) - wide[0] @ wide[1]) / scale
    assert float(error.max()) <= 5e-4


# More than 65,535 tiles of rows, where a grid's second dimension ends.
@pytest.mark.parametrize(
    ("example", "rows", "matmul"),
    [
        ("wmma_gemm", 16 * 2 * 65_536 + 5, lambda e, a, b: e.matmul(a, b, "float16", e.load())),
        (
            "cute_tiled_copy",
            128 * 65_536 + 5,
            lambda e, a, b: e.matmul(a, b, "gemm<DefaultCopy>", e.load()),
        ),
        ("pipelined_matmul", 32 * 65_536 + 5, lambda e, a, b: e.matmul(a, b)),
    ],
)
def test_a_tall_matrix_is_multiplied(example, rows, matmul):
    product = matmul(import_module(f"examples.{example}"), ones(rows, 2), ones(2, 2))
    assert product.shape == (rows, 2)
    assert bool((product == 2).all())


def test_more_rows_than_an_int_can_count_are_rejected():
    from examples import wmma_gemm

    one = cp.zeros((1, 1), np.int8)
    tall = cp.ndarray((2**31 - 100, 1), np.int8, one.data)  # never read
    with pytest.raises(ValueError, match="counts in 32 bits"):
        wmma_gemm.matmul(tall, one, "int8", wmma_gemm.load())


KERNEL = r"""
extern "C" __global__ void touch(const float* x, float* y, int from, int to) { y[to] = x[from]; }
"""


@pytest.mark.parametrize(
    ("to", "message"),
    [(-1, "before an allocation"), (100, "behind an allocation"), (9, "may write to")],
)
def test_the_guards_detect_a_write_outside_an_array(to, message):
    memory = GuardedMemory()
    y = memory.room("y", np.empty((10, 8), np.float32), pitch=10)
    kernel = cp.RawKernel(KERNEL, "touch")
    kernel((1,), (1,), (memory.place("x", np.ones(1, np.float32)), y, np.int32(0), np.int32(to)))
    with pytest.raises(AssertionError, match=message):
        memory.check()


def test_the_guards_detect_a_write_to_an_input():
    memory = GuardedMemory()
    x = memory.place("x", np.ones(2, np.float32))
    cp.RawKernel(KERNEL, "touch")((1,), (1,), (x, x, np.int32(2), np.int32(1)))
    assert np.isnan(x.get()[1])  # memory behind the array reads as NaN
    with pytest.raises(AssertionError, match="4 bytes of x were written"):
        memory.check()
