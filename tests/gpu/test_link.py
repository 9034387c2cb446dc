"""Linked programs, and builds by NVCC, compute the right numbers."""

import pytest

cp = pytest.importorskip("cupy")
np = pytest.importorskip("numpy")

import rtcompile  # noqa: E402
from rtcompile import toolkit  # noqa: E402

PARENT = r"""
__global__ void child(float* p, int first) { p[first + threadIdx.x] += threadIdx.x; }
extern "C" __global__ void parent(float* p, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i * 32 < n) child<<<1, 32>>>(p, i * 32);
}
"""
LIBRARY = r"""
__constant__ float weights[4] = {1, 10, 100, 1000};
__device__ int calls = 0;
__device__ float weigh(float x, int i) { atomicAdd(&calls, 1); return x * weights[i % 4]; }
"""
CALLER = r"""
extern __device__ float weigh(float x, int i);
extern __device__ int calls;
extern "C" __global__ void run(const float* x, float* y) {
    y[threadIdx.x] = weigh(x[threadIdx.x], threadIdx.x);
}
extern "C" __global__ void count(int* n) { *n = calls; }
"""
HOST = r"""
#include <map>
#include <string>
std::map<std::string, int> registry;
__constant__ float offset[2];
template <class T, int N> __global__ void affine(T* x) {
    x[threadIdx.x] = x[threadIdx.x] * N + T(offset[threadIdx.x % 2]);
}
"""

needs_nvcc = pytest.mark.skipif(toolkit.current().nvcc is None, reason="nvcc is needed")


@pytest.mark.parametrize("options", [("-dc",), ("-rdc=true",), ("-dlto",)], ids=str)
@pytest.mark.parametrize("backend", ["nvrtc", pytest.param("nvcc", marks=needs_nvcc)])
def test_a_kernel_launches_kernels(backend, options):
    if backend == "nvcc" and options == ("-dlto",):
        found = toolkit.current()
        if found.nvjitlink is None or found.nvjitlink.version_pair < found.nvcc.version_pair:
            pytest.skip("an nvJitLink as new as nvcc is needed")
    kernel = rtcompile.RawKernel(PARENT, "parent", options=options, backend=backend)
    x = cp.arange(320, dtype=cp.float32)

    kernel((2,), (8,), (x, np.int32(320)))

    i = np.arange(320)
    np.testing.assert_array_equal(x.get(), (i + i % 32).astype(np.float32))


@pytest.mark.parametrize("options", [(), ("-dlto",)], ids=["machine code", "LTO"])
def test_a_program_of_two_files_shares_functions_and_variables(options):
    module = rtcompile.RawModule(code=CALLER, link=[LIBRARY], options=options)
    x, y, n = cp.arange(64, dtype=cp.float32), cp.zeros(64, cp.float32), cp.zeros(1, cp.int32)

    module.get_function("run")((1,), (64,), (x, y))
    module.get_function("count")((1,), (1,), (n,))

    i = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(
        y.get(), i * np.array([1, 10, 100, 1000], np.float32)[i.astype(int) % 4]
    )
    assert int(n[0]) == 64


@pytest.mark.parametrize("target", ["object", "ltoir"])
def test_a_library_compiled_once_serves_many_kernels(target):
    library = rtcompile.compile(LIBRARY, target=target)
    for factor in (2, 3):
        source = CALLER.replace("y[threadIdx.x] =", f"y[threadIdx.x] = {factor} *")
        module = rtcompile.RawModule(code=source, link=[library])
        x, y = cp.ones(4, dtype=cp.float32), cp.zeros(4, cp.float32)

        module.get_function("run")((1,), (4,), (x, y))

        np.testing.assert_array_equal(y.get(), np.float32(factor) * np.float32([1, 10, 100, 1000]))


@needs_nvcc
def test_a_template_that_needs_nvcc_runs():
    module = rtcompile.RawModule(code=HOST, name_expressions=["affine<float, 3>", "affine<int, 2>"])
    offset = np.array([5, 7], np.float32)
    module.get_global("offset").copy_from_host(offset.ctypes.data, offset.nbytes)

    for name, dtype, factor in (
        ("affine<float, 3>", cp.float32, 3),
        ("affine<int, 2>", cp.int32, 2),
    ):
        x = cp.arange(8, dtype=dtype)
        kernel = module.get_function(name)
        kernel((1,), (8,), (x,))

        expected = np.arange(8) * factor + np.array([5, 7])[np.arange(8) % 2]
        np.testing.assert_array_equal(x.get(), expected.astype(x.dtype))
        assert kernel.build.backend == "nvcc"


@needs_nvcc
def test_programs_linked_by_nvcc_run():
    """The fallback for code too new for nvJitLink, forced by a toolchain without nvJitLink."""
    from rtcompile.compilers import nvcc
    from rtcompile.request.units import Compiled, Limits, LinkInput
    from rtcompile.request.values import Arch

    arch = Arch.parse("sm_" + cp.cuda.Device().compute_capability)
    parts = [
        rtcompile.compile(source, arch=arch, target="object", backend="nvcc")
        for source in (CALLER, LIBRARY)
    ]
    inputs = [LinkInput("cubin", f"part{i}.cubin", part.code) for i, part in enumerate(parts)]

    linked = nvcc.link(inputs, arch, toolkit.current(), limits=Limits())

    assert isinstance(linked, Compiled), linked
    module = cp.cuda.function.Module()
    module.load(linked.code)
    x, y = cp.ones(4, dtype=cp.float32), cp.zeros(4, cp.float32)
    module.get_function("run")((1,), (4,), (x, y))
    np.testing.assert_array_equal(y.get(), np.array([1, 10, 100, 1000], np.float32))
