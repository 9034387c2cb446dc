"""Kernels of Numba and of rtcompile call each other's device functions on a device, by LTO-IR."""

import importlib
import importlib.util
from typing import Any

import cupy as cp
import numpy as np
import pytest

import rtcompile

# Numba warns of the small grids, and NumPy of what Numba does with it.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=["numba", "numba_cuda_mlir"])
def cuda(request: pytest.FixtureRequest) -> Any:
    """Return the module `cuda` of numba-cuda, which replaces the one in Numba, or of numba-cuda-mlir."""
    package = "numba_cuda" if request.param == "numba" else request.param
    if importlib.util.find_spec(package) is None or importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{package} is not installed")
    cuda = importlib.import_module(f"{request.param}.cuda")
    try:
        cuda.jit("void(int32)")(lambda x: None)
    except AttributeError as error:  # Numba 0.68 uses names that NumPy 2.5 lacks
        pytest.skip(f"{package} does not work with NumPy {np.__version__}: {error}")
    return cuda


def device_architecture() -> rtcompile.Arch:
    major, minor = divmod(int(cp.cuda.Device().compute_capability), 10)
    return rtcompile.Arch(major, minor)


def test_a_kernel_of_numba_calls_a_function_of_rtcompile(cuda):
    source = 'extern "C" __device__ int scaled(float* r, float x) { *r = 2 * x; return 0; }'
    code = rtcompile.compile(
        source, arch=device_architecture(), target="ltoir", options=["-dc"]
    ).code
    scaled = cuda.declare_device("scaled", "float32(float32)", link=[cuda.LTOIR(code)])

    @cuda.jit
    def kernel(x):
        x[cuda.threadIdx.x] = scaled(x[cuda.threadIdx.x])

    x = cp.arange(64, dtype=cp.float32)
    kernel[1, 64](x)

    cp.testing.assert_array_equal(x, 2 * cp.arange(64, dtype=cp.float32))


def test_a_kernel_of_rtcompile_calls_a_function_of_numba(cuda):
    def double(x):
        return 2 * x

    arch = device_architecture()
    numpy_type = np.dtype(np.float32)
    float32 = importlib.import_module(
        "numba" if cuda.__name__ == "numba.cuda" else "numba_cuda_mlir.types"
    ).float32
    ltoir, _ = cuda.compile(
        double,
        float32(float32),
        device=True,
        output="ltoir",
        abi="c",
        abi_info={"abi_name": "of_numba"},
        cc=(arch.major, arch.minor),
    )
    part = rtcompile.ObjectCode(ltoir, "ltoir", arch)
    source = """extern "C" __device__ float of_numba(float);
    extern "C" __global__ void k(float* x) { x[threadIdx.x] = of_numba(x[threadIdx.x]); }"""
    x = cp.arange(64, dtype=numpy_type)

    rtcompile.RawKernel(source, "k", link=[part])((1,), (64,), (x,))

    cp.testing.assert_array_equal(x, 2 * cp.arange(64, dtype=numpy_type))
