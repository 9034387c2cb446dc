"""Links rtcompile's LTO-IR into a kernel of numba-cuda, and the reverse; nothing is launched."""

import pytest

import rtcompile
from rtcompile import Arch, cubin, toolkit
from rtcompile.compilers import nvjitlink
from rtcompile.request.options import Options
from rtcompile.request.units import Compiled, Limits, LinkInput
from tests.build.test_link import kernels

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")

from numba import cuda, float32, void

pytestmark = pytest.mark.needs_compiler


@pytest.mark.parametrize("arch", ["sm_90", "sm_90a"])
def test_a_function_of_numba_is_linked_into_a_kernel_of_ours(arch):
    ltoir, _ = cuda.compile(
        lambda x: 2 * x,
        float32(float32),
        device=True,
        output="ltoir",
        abi="c",
        abi_info={"abi_name": "of_numba"},
        cc=(9, 0),
    )
    part = rtcompile.ObjectCode(ltoir, "ltoir", Arch.parse("sm_90"))
    caller = """extern "C" __device__ float of_numba(float);
    extern "C" __global__ void k(float* x) { x[threadIdx.x] = of_numba(x[threadIdx.x]); }"""

    assert kernels(rtcompile.compile(caller, arch=arch, link=[part])) == ["k"]


def test_a_function_of_ours_is_linked_into_a_kernel_of_numba():
    source = 'extern "C" __device__ int scaled(float* r, float x) { *r = 2 * x; return 0; }'
    code = rtcompile.compile(source, arch="sm_90", target="ltoir", options=["-dc"])
    scaled = cuda.declare_device("scaled", "float32(float32)", link=[cuda.LTOIR(code.code)])

    def kernel(x):
        x[cuda.threadIdx.x] = scaled(x[cuda.threadIdx.x])

    (own, part), _ = cuda.compile_all(
        kernel, void(float32[:]), device=False, output="ltoir", cc=(9, 0), abi="numba"
    )

    assert part.data == code.code
    # The linker rejects calls of undefined functions.
    parts = [LinkInput("ltoir", name, data) for name, data in [("own", own), ("part", part.data)]]
    made = nvjitlink.link(
        parts, Arch(9, 0), Options(), toolkit.current(), limits=Limits(timeout=60)
    )
    assert isinstance(made, Compiled), made
    assert len(cubin.kernel_symbols(made.code)) == 1
