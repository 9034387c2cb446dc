"""A report suggests the same blocks as the driver, for thirty kernels."""

from pathlib import Path
from typing import Any

import pytest

cupy = pytest.importorskip("cupy")

import rtcompile  # noqa: E402

SOURCE = Path(__file__).with_name("occupancy.cu").read_text()
DYNAMIC = (0, 1000, 12_000, 40_000, 100_000, 200_000)
VALUES = (1, 16, 40, 90, 160, 230)
CASES = [
    *((f"plain<{v}, {s}>", DYNAMIC[(i + j) % 6]) for i, v in enumerate(VALUES) for j, s in
      enumerate((0, 1000, 6000))),
    *((f"bounded<{v}, {s}, {t}, {b}>", d) for v, s, t, b, d in (
        (1, 0, 32, 1, 0), (1, 0, 100, 1, 0), (16, 0, 1000, 1, 0), (16, 100, 256, 8, 5000),
        (90, 0, 256, 1, 0), (90, 0, 256, 4, 0), (160, 0, 128, 1, 30_000), (160, 0, 384, 1, 0),
        (230, 0, 64, 1, 0), (230, 0, 256, 1, 100_000), (40, 6000, 512, 2, 0), (1, 0, 1024, 2, 50_000),
    )),
]  # fmt: skip


@pytest.fixture(scope="module")
def module() -> Any:
    return rtcompile.RawModule(code=SOURCE, name_expressions=[name for name, _ in CASES])


def queried(function: str, *arguments: Any) -> tuple[Any, ...]:
    from cuda.bindings import driver

    status, *values = getattr(driver, function)(*arguments)
    assert status == driver.CUresult.CUDA_SUCCESS
    return tuple(values)


def test_there_are_thirty_kernels_of_many_kinds(module):
    assert len(CASES) == 30
    registers = {module.get_function(name).num_regs for name, _ in CASES}
    assert len(registers) > 8


@pytest.mark.parametrize(("name", "dynamic"), CASES)
def test_the_driver_suggests_the_same_block(module, name, dynamic):
    kernel = module.get_function(name)
    kernel.max_dynamic_shared_size_bytes = dynamic
    function = kernel.kernel.ptr
    (found,) = kernel.report(dynamic_shared=dynamic).kernels
    assert found.registers == kernel.num_regs
    assert found.stack_bytes == kernel.local_size_bytes
    (_, block) = queried("cuOccupancyMaxPotentialBlockSize", function, None, dynamic, 0)
    assert found.occupancy.block == block
    function_name = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
    assert queried(function_name, function, block, dynamic) == (found.occupancy.blocks,)
