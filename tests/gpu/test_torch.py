"""torch launches what rtcompile compiled for `torch.cuda._compile_kernel`."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import rtcompile  # noqa: E402


def test_its_kernels_are_launched_under_install():
    if not torch.cuda.is_available():
        pytest.skip("this torch is for processors")
    source = "template <class T> __global__ void twice(T* x) { x[threadIdx.x] *= 2; }"
    before = rtcompile.cache.info().hits
    with rtcompile.install("torch") as installation:
        assert installation.active, installation.problem
        kernels = [torch.cuda._compile_kernel(source, "twice<float>") for _ in range(2)]
    assert rtcompile.cache.info().hits == before + 1
    x = torch.ones(32, device="cuda")
    for kernel in kernels:
        kernel(grid=(1, 1, 1), block=(32, 1, 1), args=[x])
    assert x.tolist() == [4.0] * 32
