"""A mistake that only the driver detects raises one error that names it."""

import re

import pytest

cupy = pytest.importorskip("cupy")

import rtcompile  # noqa: E402
from tests.processes import python  # noqa: E402

SCALE = 'extern "C" __global__ void scale(float* x) { extern __shared__ float s[]; x[0] = s[0]; }'


def assert_unchained(error: BaseException) -> None:
    assert isinstance(error, rtcompile.RtcompileError)
    assert error.__context__ is None
    assert error.__cause__ is None


@pytest.mark.parametrize(
    ("code", "name", "message"),
    [
        (SCALE, "scael", "Is 'scale' meant?"),
        ("__global__ void scale(float* x) { *x = 1; }", "scale", "its scale(float*) is C++"),
        (
            "template <class T> __global__ void scale(T* x) { *x = 1; }",
            "scale",
            "it is a template, and nothing instantiates it",
        ),
    ],
)
def test_a_missing_kernel_is_distinguished_from_two_other_mistakes(code, name, message):
    with pytest.raises(cupy.cuda.driver.CUDADriverError) as caught:
        rtcompile.RawModule(code=code).get_function(name)
    assert_unchained(caught.value)
    assert caught.value.status == 500
    assert message in str(caught.value)
    assert "It has" in str(caught.value)  # lists the existing kernels, or none


def test_a_missing_variable_is_reported():
    module = rtcompile.RawModule(code="__device__ int there;" + SCALE.replace("s[0]", "there"))
    assert module.get_global("there").ptr
    with pytest.raises(rtcompile.DriverError, match="Is 'there' meant") as caught:
        module.get_global("their")
    assert_unchained(caught.value)


def test_code_for_another_device_is_reported_with_both():
    with pytest.raises(rtcompile.DriverError, match="compiled for sm_75") as c:
        rtcompile.RawModule(code=SCALE, arch="sm_75").get_function("scale")
    assert_unchained(c.value)
    assert "compute capability" in str(c.value)
    assert c.value.status in (200, 209)


def test_a_launch_beyond_a_limit_is_reported_with_the_limit():
    kernel = rtcompile.RawKernel(SCALE, "scale")
    x = cupy.zeros(1, "f")
    kernel((1,), (32,), (x,), shared_mem=1024)
    with pytest.raises(rtcompile.DriverError, match="max_dynamic_shared_size_bytes = 60000") as c:
        kernel((1,), (32,), (x,), shared_mem=60000)
    assert_unchained(c.value)
    with pytest.raises(rtcompile.DriverError, match="4096 threads in a block are more than") as c:
        kernel((1,), (4096,), (x,))
    assert_unchained(c.value)
    kernel.max_dynamic_shared_size_bytes = 60000
    kernel((1,), (32,), (x,), shared_mem=60000)
    cupy.cuda.Device().synchronize()


FAILING = {
    "kernel": "rtcompile.RawKernel('int x = y;', 'k')((1,), (1,), ())",
    "module": "rtcompile.RawModule(code='int x = y;').get_function('k')",
    "name": "rtcompile.RawModule(code='__device__ int x;').get_function('k')",
    "launch": "rtcompile.RawKernel('extern \"C\" __global__ void k() {}', 'k')((1,), (4096,), ())",
}


@pytest.mark.parametrize("statement", FAILING.values(), ids=FAILING)
def test_a_traceback_shows_only_the_callers_line_and_the_error(statement):
    program = f"import rtcompile\n{statement}\n"
    done = python(program)
    assert done.returncode == 1
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert "KeyError" not in done.stderr
    assert re.search(r"^rtcompile\.(\w+\.)?\w+Error: ", done.stderr, re.M), done.stderr
    assert len(done.stderr.split("\n")) < 20
    if "int x = y" in statement:
        assert 'kernel.cu:1:9: error: identifier "y" is undefined' in done.stderr
