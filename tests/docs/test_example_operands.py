"""The Hopper examples accept or reject every operand of their random cases; no GPU is needed."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

pytest.importorskip("cupy")

from examples import cutlass_gemm, matrices, sm90_gemm
from rtcompile.extras import launching as tensors
from tests.gpu import random_cases
from tests.tables import from_table


@from_table
def test_a_dimension_of_one_has_the_stride_of_a_contiguous_matrix(
    shape: tuple[int, int], strides: tuple[int, int], expected: tuple[int, int]
) -> None:
    assert matrices.effective_strides(shape, strides) == expected


class HostArray(np.ndarray):
    """An array in host memory that claims to be on a device."""

    device = property(lambda self: SimpleNamespace(id=0))  # type: ignore[assignment]
    data = property(lambda self: SimpleNamespace(ptr=self.ctypes.data))  # type: ignore[assignment]
    __cuda_array_interface__ = property(
        lambda self: {**self.__array_interface__, "strides": self.strides}
    )


class HostMemory:
    def place(self, name: str, values: np.ndarray, *, pitch: int, start: int) -> HostArray:
        strides = (pitch * values.itemsize, values.itemsize)
        room = np.empty(pitch * (values.shape[0] + 1) + start + 64, values.dtype)
        first = -room.ctypes.data % 128 + start * values.itemsize
        return np.ndarray(values.shape, values.dtype, room, first, strides).view(HostArray)

    room = place

    def check(self) -> None: ...


def between_elements(x: HostArray) -> HostArray:
    shape = x.shape[0], max(1, x.shape[1] - 1)
    return np.ndarray(shape, x.dtype, bytearray(1 << 24), 1, np.abs(x.strides)).view(HostArray)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the examples run on host arrays without compiling, launching or calling the driver."""
    module, driver, host, device = MagicMock(), MagicMock(), MagicMock(), MagicMock()
    driver.cuTensorMapEncodeTiled.return_value = 0, SimpleNamespace(opaque=[0] * 16)
    device.compute_capability, device.attributes = "90", {"MultiProcessorCount": 132}
    device.__enter__.return_value = host.cuda.Device.return_value = device
    host.asarray = lambda array: array
    host.broadcast_to = lambda array, shape: np.broadcast_to(array, shape, subok=True)
    monkeypatch.setitem(sys.modules, "cupy", host)
    plan = np.zeros((), cutlass_gemm._PLAN)[()]
    for operand in ("a", "b", "out"):
        plan[operand] = (128, (64, 64, 1))
    for where, name, value in (
        (sm90_gemm, "load", lambda *arguments: module),
        (cutlass_gemm, "load", lambda *arguments: module),
        (cutlass_gemm, "_plan", lambda *arguments: (plan, bytes(4096))),
        (matrices, "on_stream_of", lambda *arguments: nullcontext()),
        (matrices, "empty", lambda like, *shape: np.empty(shape, like.dtype).view(HostArray)),
        (tensors, "bindings", lambda: driver),
        (random_cases, "cp", host),
        (random_cases, "GuardedMemory", HostMemory),
        (random_cases, "build_cutlass", lambda: None),
        (random_cases, "between_elements", between_elements),
        (random_cases, "product", product),
        (random_cases.Draw, "values", lambda self, dtype, shape: np.empty(shape, dtype)),
    ):
        monkeypatch.setattr(where, name, value)


def product(draw: Any, what: str, operands: Any, multiply: Any, tolerance: float, **_: Any) -> Any:
    return random_cases.attempt(draw, what, operands, multiply, lambda *arrays: 0.0, tolerance)


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("example", random_cases.HOPPER)
def test_every_drawn_operand_is_accepted_or_rejected_by_the_example(example: str) -> None:
    outcomes = []
    for index in range(200):
        try:
            outcomes.append(random_cases.CASES[example](random_cases.Draw((2, index), 2500)))
        except ImportError:  # a case with torch's tensors
            continue
    assert sum(outcome.rejected for outcome in outcomes) > 10
    assert sum(not outcome.rejected for outcome in outcomes) > 66


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("example", [sm90_gemm, cutlass_gemm])
@pytest.mark.parametrize("k", [1, 64])
def test_a_broadcast_column_is_multiplied(example: Any, k: int) -> None:
    a = HostMemory().place("a", np.empty((128, k), np.float16), pitch=64, start=0)
    b = HostMemory().place("b", np.empty((k, 8), np.float16), pitch=8, start=0)
    column = np.lib.stride_tricks.as_strided(b, (k, 1), (b.strides[0], 0), subok=True)
    assert example.matmul(a, column).shape == (128, 1)
