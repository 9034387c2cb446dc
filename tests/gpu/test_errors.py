"""What a caller on a device sees of a mistake: one traceback, one error, and what to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

cp = pytest.importorskip("cupy")

import rtcompile  # noqa: E402

SOURCE = r"""
extern "C" __global__ void fill(int* x) { x[threadIdx.x] = 7; }
template <class T> __global__ void scale(T* x) { x[threadIdx.x] *= 2; }
__global__ void mangled(int* x) { *x = 0; }
"""
FAILING = {
    "module": "rtcompile.RawModule(code='#error nothing here').get_function('k')",
    "kernel": "rtcompile.RawKernel('#error nothing here', 'k')((1,), (1,), ())",
    "name": "rtcompile.RawModule(code='__device__ int x;').get_function('k')",
    "launch": "rtcompile.RawKernel('extern \"C\" __global__ void k() {}', 'k')((1,), (4096,), ())",
}


@pytest.mark.parametrize("statement", FAILING.values(), ids=FAILING)
def test_a_mistake_ends_in_one_traceback_with_one_error(statement: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import rtcompile\n{statement}"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("Traceback (most recent call last)") == 1, done.stderr
    assert "During handling" not in done.stderr
    assert "direct cause" not in done.stderr
    assert "rtcompile.errors." in done.stderr


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param("fil", "'fill' meant", id="misspelt"),
        pytest.param("mangled", 'extern "C"', id="mangled"),
        pytest.param("scale", "template", id="template"),
    ],
)
def test_a_name_that_is_not_there_is_explained_by_those_that_are(name: str, says: str) -> None:
    module = rtcompile.RawModule(code=SOURCE)
    with pytest.raises(cp.cuda.driver.CUDADriverError) as caught:
        module.get_function(name)
    assert isinstance(caught.value, rtcompile.RtcompileError)
    message = str(caught.value)
    assert repr(name) in message.splitlines()[0]
    assert says in message
    assert "fill" in message


def test_a_launch_with_too_many_threads_says_how_many_there_may_be() -> None:
    kernel = rtcompile.RawKernel(SOURCE, "fill")
    with pytest.raises(cp.cuda.driver.CUDADriverError, match=r"2048 threads.* more than the 1024"):
        kernel((1,), (2048,), (cp.zeros(2048, "i4"),))
    x = cp.zeros(32, "i4")
    kernel((1,), (32,), (x,))  # nothing was launched, so the context lives
    assert bool((x == 7).all())


@pytest.mark.parametrize(
    "option", ["-arch=sm_70", "-arch=sm_120", "-arch sm_86", "-arch=compute_30"]
)
def test_an_architecture_that_the_device_cannot_run_is_passed_over_with_one_warning(
    option: str,
) -> None:
    if cp.cuda.Device().compute_capability != "90":
        pytest.skip("written for compute capability 9.0")
    kernel = rtcompile.RawKernel(SOURCE, "fill", options=(option,))
    x = cp.zeros(32, "i4")
    with pytest.warns(rtcompile.RtcompileWarning) as told:
        kernel((1,), (32,), (x,))
    kernel((1,), (32,), (x,))  # a second warning would be an error
    assert len(told) == 1
    assert bool((x == 7).all())
    assert str(kernel.object_code.arch) == "sm_90a"
