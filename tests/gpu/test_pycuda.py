"""Kernels of `rtcompile.extras.pycuda` on a device: with CuPy's arrays, and with PyCUDA's where it is installed."""

from pathlib import Path

import numpy as np
import pytest

cp = pytest.importorskip("cupy")

from rtcompile.extras.pycuda import In, InOut, Out, SourceModule  # noqa: E402

# Two kernels as in programs for PyCUDA: a table in constant memory that is filled by its address, a reduction over
# dynamic shared memory with atomics, and a two-dimensional block with many scalars.
SOURCE = Path(__file__).with_name("pycuda.cu").read_text()
IMAGE = (np.arange(12, dtype=np.float32) ** 2).reshape(3, 4)
BLOCKS = {"block": (16, 16, 1), "grid": (1, 1)}


@pytest.fixture(scope="module")
def module() -> SourceModule:
    return SourceModule(SOURCE)


def test_arrays_in_host_memory_are_copied(module):
    window = module.get_function("window")
    out = np.empty_like(IMAGE)
    scalars = np.int32(4), np.int32(3), np.float32(2), np.bool_(True).astype(np.uint8)

    window(Out(out), In(IMAGE), *scalars, **BLOCKS)

    np.testing.assert_allclose(out, np.sqrt(IMAGE[:, ::-1]) * 2)
    both = IMAGE.copy()
    window(InOut(both), In(IMAGE), *scalars[:2], np.float32(1), np.uint8(0), **BLOCKS)
    np.testing.assert_allclose(both, np.sqrt(IMAGE))


@pytest.mark.parametrize("call", ["plain", "prepared", "async"])
def test_a_table_is_filled_by_its_address_and_a_reduction_runs(module, call):
    table = np.arange(8, dtype=np.uint64)
    address, size = module.get_global("table")
    assert size == table.nbytes
    address.copy_from_host(table.ctypes.data, size)
    x, sums = cp.arange(64, dtype=cp.float32), cp.zeros(2, cp.float32)
    kernel = module.get_function("weighted").prepare("PPi")
    shape = (2, 1), (32, 1, 1)

    if call == "plain":
        kernel(sums, x, np.int32(64), grid=(2, 1), block=(32, 1, 1), shared=128)
    elif call == "prepared":
        kernel.prepared_call(*shape, sums, x.data.ptr, 64, shared_size=128)
    else:
        stream = cp.cuda.Stream(non_blocking=True)
        cp.cuda.Device().synchronize()
        kernel.prepared_async_call(*shape, stream, sums, x, 64, shared_size=128)
        stream.synchronize()

    expected = float((np.arange(64) * np.tile(table, 8)).sum())
    assert sums.tolist() == [expected, expected]
    assert kernel.NUM_REGS > 0


def test_a_struct_is_passed_by_value(module):
    pair = np.array([(3, 0.5)], np.dtype([("n", "i4"), ("x", "f8")], align=True))
    out = np.zeros(1)
    kernel = module.get_function("structure")
    for given in (pair, pair[0]):
        kernel(Out(out), given, block=(1, 1, 1))
        assert out.tolist() == [1.5]


def test_a_launch_takes_more_than_48_kb_of_shared_memory(module):
    kernel = module.get_function("weighted")
    x, sums = cp.ones(64, cp.float32), cp.zeros(1, cp.float32)
    kernel(sums, x, np.int32(64), block=(32, 1, 1), shared=100 << 10)
    cp.cuda.Device().synchronize()
    assert kernel.max_dynamic_shared_size_bytes == 100 << 10


def test_with_pycuda_the_arrays_and_the_context_are_its_own():
    pytest.importorskip("pycuda", reason="PyCUDA is not installed")
    import pycuda.autoprimaryctx
    from pycuda import driver, gpuarray

    try:
        module = SourceModule(SOURCE)
        address, _ = module.get_global("table")
        driver.memcpy_htod(address, np.ones(8, np.uint64))
        sums, x = gpuarray.zeros(1, np.float32), gpuarray.to_gpu(np.ones(64, np.float32))
        kernel = module.get_function("weighted")
        assert isinstance(kernel, driver.Function)
        kernel(sums, x, np.int32(64), block=(32, 1, 1), shared=128)
        assert sums.get().tolist() == [64.0]
        with pytest.raises(driver.CompileError, match="undefined"):
            SourceModule("__global__ void k() { foo(); }")
    finally:
        pycuda.autoprimaryctx.context.pop()
