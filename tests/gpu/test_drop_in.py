"""`rtcompile.RawModule` and `RawKernel` behave on a device like CuPy's."""

import io
import pickle

import pytest

cp = pytest.importorskip("cupy")
np = pytest.importorskip("numpy")

import rtcompile  # noqa: E402

ADD = r"""
extern "C" __global__ void add(const float* a, const float* b, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = a[i] + b[i];
}
"""
SCALE = r"""
#ifndef FACTOR
#define FACTOR 2
#endif
__constant__ float offset[4];
__device__ int calls;
template <class T, int N> __global__ void scale(T* x) { x[threadIdx.x] *= N; }
extern "C" __global__ void shift(float* x) {
    x[threadIdx.x] = x[threadIdx.x] * FACTOR + offset[threadIdx.x % 4];
    if (threadIdx.x == 0) atomicAdd(&calls, 1);
}
"""
GRID_SYNC = r"""
#include <cooperative_groups.h>
extern "C" __global__ void reverse(const int* in, int* scratch, int* out, int n) {
    auto grid = cooperative_groups::this_grid();
    for (int i = grid.thread_rank(); i < n; i += grid.num_threads()) scratch[i] = in[i] + 1;
    grid.sync();
    for (int i = grid.thread_rank(); i < n; i += grid.num_threads()) out[i] = scratch[n - 1 - i];
}
"""
DYNAMIC_SHARED = r"""
extern "C" __global__ void fill(int* out) {
    extern __shared__ int tile[];
    for (int i = threadIdx.x; i < 20000; i += blockDim.x) tile[i] = i;
    __syncthreads();
    if (threadIdx.x == 0) out[0] = tile[19999];
}
"""


def launch_add(kernel):
    a, b = cp.random.random((2, 1000), dtype=cp.float32)
    out = cp.full(1000, cp.nan, dtype=cp.float32)
    kernel((8,), (128,), (a, b, out, np.int32(1000)))
    cp.testing.assert_array_equal(out, a + b)


def test_a_kernel_computes_the_same_as_cupys():
    kernel = rtcompile.RawKernel(ADD, "add")
    assert isinstance(kernel, cp.RawKernel)
    launch_add(kernel)


@pytest.mark.parametrize("backend", ["nvrtc", "nvcc"])
def test_a_module_returns_kernels_globals_and_templates(backend):
    expressions = {"a": "scale<float, 3>", "b": "scale<double, 5>"} if backend == "nvrtc" else None
    module = rtcompile.RawModule(
        code=SCALE,
        options=("-DFACTOR=7",),
        backend=backend,
        name_expressions=expressions and expressions.values(),
    )
    assert isinstance(module, cp.RawModule)
    constant = cp.ndarray((4,), cp.float32, module.get_global("offset"))
    constant[...] = cp.arange(4, dtype=cp.float32)
    x = cp.ones(8, dtype=cp.float32)
    module.get_function("shift")((1,), (8,), (x,))
    cp.testing.assert_array_equal(x, 7 + cp.arange(8) % 4)
    calls = cp.ndarray((1,), cp.int32, module.get_global("calls"))
    assert calls[0] == 1
    if expressions:
        y = cp.ones(8, dtype=cp.float64)
        module.get_function("scale<double, 5>")((1,), (8,), (y,))
        cp.testing.assert_array_equal(y, cp.full(8, 5.0))


def test_two_modules_of_one_source_share_their_variables_as_in_cupy():
    first, second = rtcompile.RawModule(code=SCALE), rtcompile.RawModule(code=SCALE)
    constant = cp.ndarray((4,), cp.float32, first.get_global("offset"))
    constant[...] = 11
    x = cp.zeros(4, dtype=cp.float32)
    second.get_function("shift")((1,), (4,), (x,))
    cp.testing.assert_array_equal(x, cp.full(4, 11.0))


def test_a_cooperative_launch_synchronises_the_grid():
    kernel = rtcompile.RawKernel(GRID_SYNC, "reverse", enable_cooperative_groups=True)
    n = 10_000
    values = cp.random.randint(0, 1000, n, dtype=cp.int32)
    scratch, out = cp.empty_like(values), cp.empty_like(values)
    kernel((64,), (128,), (values, scratch, out, np.int32(n)))
    cp.testing.assert_array_equal(out, (values + 1)[::-1])


def test_every_attribute_reads_and_the_two_settable_ones_take_effect():
    kernel = rtcompile.RawKernel(DYNAMIC_SHARED, "fill")
    reference = cp.RawKernel(DYNAMIC_SHARED, "fill")
    assert kernel.attributes.keys() == reference.attributes.keys()
    assert kernel.attributes["max_threads_per_block"] == 1024
    kernel.max_dynamic_shared_size_bytes = 80_000
    kernel.preferred_shared_memory_carveout = 100
    assert kernel.max_dynamic_shared_size_bytes == 80_000
    out = cp.zeros(1, dtype=cp.int32)
    kernel((1,), (256,), (out,), shared_mem=80_000)
    assert out[0] == 19_999


@pytest.mark.parametrize("used", [False, True], ids=["fresh", "used"])
def test_both_classes_pickle_before_and_after_use(used):
    kernel = rtcompile.RawKernel(ADD, "add", ("-DX=1",), enable_cooperative_groups=True)
    module = rtcompile.RawModule(code=ADD)
    if used:
        launch_add(kernel)
        launch_add(module.get_function("add"))
    again = pickle.loads(pickle.dumps(kernel))
    assert (again.code, again.options, again.enable_cooperative_groups) == (ADD, ("-DX=1",), True)
    launch_add(again)
    launch_add(pickle.loads(pickle.dumps(module)).get_function("add"))
    launch_add(pickle.loads(pickle.dumps(module.get_function("add"))))


@pytest.mark.parametrize("target", ["cubin", "ptx"])
def test_a_file_is_loaded(tmp_path, target):
    file = tmp_path / f"add.{target}"
    arch = rtcompile.RawKernel(ADD, "add").object_code.arch
    file.write_bytes(rtcompile.compile(ADD, arch=arch, target=target).code)
    module = rtcompile.RawModule(path=str(file))
    kernel = module.get_function("add")
    assert kernel.file_path == str(file)
    assert kernel.object_code is None
    launch_add(kernel)


def test_a_fatbin_is_loaded(tmp_path):
    file = tmp_path / "add.fatbin"
    arch = rtcompile.RawKernel(ADD, "add").object_code.arch
    code = rtcompile.compile(ADD, arch=arch, backend="nvcc", target="fatbin")
    file.write_bytes(code.code)
    launch_add(rtcompile.RawModule(path=str(file)).get_function("add"))


def test_a_missing_name_is_cupys_driver_error():
    module = rtcompile.RawModule(code=ADD)
    with pytest.raises(cp.cuda.driver.CUDADriverError, match="named symbol not found"):
        module.get_function("subtract")


@pytest.mark.parametrize("jitify", [False, True])
def test_errors_are_caught_by_except_clauses_written_for_cupy(jitify):
    compiler = cp.cuda.compiler
    expected = compiler.JitifyException if jitify else compiler.CompileException
    kernel = rtcompile.RawKernel("#error precision not supported", "k", jitify=jitify)
    with pytest.raises(expected, match="precision not supported") as caught:
        kernel.kernel  # noqa: B018
    assert isinstance(caught.value, rtcompile.CompileError)
    out = io.StringIO()
    caught.value.dump(out)
    assert "precision not supported" in out.getvalue()


def test_the_device_gets_its_own_architecture():
    code = rtcompile.RawKernel(ADD, "add").object_code
    capability = cp.cuda.Device().compute_capability
    assert str(code.arch).startswith(f"sm_{capability}")
    if capability == "90":
        assert str(code.arch) == "sm_90a"


def test_a_kernel_computes_the_same_bits_as_under_cupy():
    source = r"""
    extern "C" __global__ void f(const float* x, float* y) {
        float v = x[threadIdx.x];
        y[threadIdx.x] = __fsqrt_rn(v) + expf(v) / 3.0f + v * 1e-39f + sinf(v) * fmaf(v, v, 0.1f);
    }
    """
    x = cp.random.standard_normal(256, dtype=cp.float32) * 10
    x = cp.abs(x) * cp.float32(1e-3) ** cp.random.randint(0, 13, 256).astype(cp.float32)
    ours, theirs = cp.empty_like(x), cp.empty_like(x)
    rtcompile.RawKernel(source, "f")((1,), (256,), (x, ours))
    cp.RawKernel(source, "f")((1,), (256,), (x, theirs))
    cp.testing.assert_array_equal(ours.view(cp.uint32), theirs.view(cp.uint32))


def test_cucomplex_is_translated_to_cupys_complex():
    source = r"""
    #include <cuComplex.h>
    extern "C" __global__ void combine(cuComplex* a, cuDoubleComplex* b) {
        a[threadIdx.x] = cuCfmaf(a[threadIdx.x], a[threadIdx.x], make_cuComplex(1, 2));
        b[threadIdx.x] = cuCmul(b[threadIdx.x], cuConj(b[threadIdx.x]));
    }
    """
    a = cp.arange(8).astype(cp.complex64) * (1 + 2j)
    b = cp.arange(8).astype(cp.complex128) * (1 - 3j)
    expected = a * a + (1 + 2j), b * b.conj()
    rtcompile.RawKernel(source, "combine", translate_cucomplex=True)((1,), (8,), (a, b))
    cp.testing.assert_allclose(a, expected[0])
    cp.testing.assert_allclose(b, expected[1])


@pytest.mark.parametrize(
    "option", ["-arch=sm_70", "-arch=sm_120", "-arch sm_86", "-arch=compute_30"]
)
def test_an_architecture_the_device_cannot_run_is_ignored_with_one_warning(option):
    if cp.cuda.Device().compute_capability != "90":
        pytest.skip("written for compute capability 9.0")
    kernel = rtcompile.RawKernel(ADD, "add", options=(option,))
    with pytest.warns(rtcompile.RtcompileWarning, match="sm_90a instead") as printed:
        launch_add(kernel)
    launch_add(kernel)  # a second warning would be an error
    assert len(printed) == 1
    assert str(kernel.object_code.arch) == "sm_90a"


@pytest.mark.multi_gpu
def test_a_kernel_follows_the_current_device():
    kernel = rtcompile.RawKernel(ADD, "add")
    module = rtcompile.RawModule(code=SCALE)
    for device in (0, 1, 0):
        with cp.cuda.Device(device):
            launch_add(kernel)
            x = cp.ones(4, dtype=cp.float32)
            module.get_function("shift")((1,), (4,), (x,))
            assert x.device.id == device
