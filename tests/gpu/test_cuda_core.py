"""cuda.core launches rtcompile's code, and rtcompile links cuda.core's code."""

import pytest

cp = pytest.importorskip("cupy")
core = pytest.importorskip("cuda.core", reason="cuda-core is not installed")

import rtcompile  # noqa: E402
from tests.programs import CALLER, LIBRARY  # noqa: E402

SOURCE = "template <class T> __global__ void scale(T* x) { x[threadIdx.x] *= 2; }"


@pytest.fixture
def device():
    device = core.Device()
    device.set_current()
    return device


def launched(device, kernel) -> list[float]:
    """Launch a kernel on 32 ones, by cuda.core."""
    x = cp.ones(32, cp.float32)
    cp.cuda.get_current_stream().synchronize()
    stream = device.create_stream()
    core.launch(stream, core.LaunchConfig(grid=1, block=32), kernel, x.data.ptr)
    stream.sync()
    return x.tolist()


def test_code_of_ours_is_a_kernel_of_cuda_core(device):
    code = rtcompile.compile(SOURCE, name_expressions=["scale<float>"])

    symbols = {name: lowered.encode() for name, lowered in code.lowered_names.items()}
    made = core.ObjectCode.from_cubin(code.code, symbol_mapping=symbols)

    assert launched(device, made.get_kernel("scale<float>")) == [2.0] * 32


@pytest.mark.parametrize("kind", ["cubin", "ltoir", "ptx"])
def test_code_of_cuda_core_is_linked_into_a_kernel_of_ours(device, kind):
    options = core.ProgramOptions(
        relocatable_device_code=True, link_time_optimization=kind == "ltoir" or None
    )
    part = core.Program(LIBRARY, "c++", options).compile(kind)
    x = cp.ones(32, cp.float32)

    rtcompile.RawModule(code=CALLER, link=[part]).get_function("k")((1,), (32,), (x,))

    assert x.tolist() == [3.0] * 32
