"""A build without the kernel that was asked for does not succeed silently, with or without a device."""

import warnings
from typing import Any

import pytest

import rtcompile
from rtcompile import CompileRequest, DriverError, RawKernel, RawModule, RtcompileWarning
from tests.tables import from_table

pytestmark = pytest.mark.needs_compiler

SCALE = "__global__ void scale(float* x) { *x *= 2; }"
TEMPLATE = "template <class T> __global__ void scale(T* x) { *x *= 2; }"


@from_table
def test_a_missing_kernel_raises_without_a_device(source, name, says):
    kernel = RawKernel(source, name, arch="sm_80", options=("-G",))
    for use in (lambda: kernel.object_code, lambda: kernel.build, lambda: kernel.save("k.cubin")):
        with pytest.raises(DriverError, match=f"has no kernel '{name}'") as failed:
            use()
        assert says in str(failed.value)


def test_a_batch_reports_the_missing_kernel():
    good = RawKernel(f'extern "C" {SCALE}', "scale", arch="sm_80")
    bad = RawKernel(f'extern "C" {SCALE}', "other", arch="sm_80")
    for _ in range(2):  # compiled, and found
        code, error = rtcompile.compile_many([good, bad], progress=False, errors="return")
        assert code.kind == "cubin"
        assert isinstance(error, DriverError)
        futures = rtcompile.submit_many([good, bad])
        assert futures[0].result().kind == "cubin"
        for _ in range(2):
            assert isinstance(futures[1].exception(), DriverError)
            with pytest.raises(DriverError, match="has no kernel 'other'"):
                futures[1].result()
    with pytest.raises(rtcompile.BatchError, match="has no kernel 'other'"):
        rtcompile.compile_many([good, bad], progress=False)


@pytest.mark.some
@pytest.mark.parametrize("options", [(), ("-rdc=true",), ("-G",), ("-lineinfo",)])
@pytest.mark.parametrize("arch", ["sm_75", "sm_90a", "sm_120"])
def test_a_kernel_is_found_whatever_the_options(options, arch):
    source = f'extern "C" {SCALE}'
    assert RawKernel(source, "scale", arch=arch, options=options).object_code is not None


def uses(source: str, **arguments: Any) -> list[Any]:
    request = CompileRequest(source, arch="sm_80", **arguments)
    return [
        lambda: rtcompile.compile(source, arch="sm_80", **arguments),
        lambda: rtcompile.compile_many([request], progress=False),
        lambda: rtcompile.submit_many([request])[0].result(),
        *([] if arguments else [lambda: RawModule(code=source, arch="sm_80").object_code]),
    ]


@pytest.mark.parametrize("target", ["cubin", "ptx"])
def test_a_source_whose_kernels_are_missing_warns(target):
    arguments = {} if target == "cubin" else {"target": target}
    for use in uses(TEMPLATE, **arguments) * 2:  # compiled, and found
        with pytest.warns(RtcompileWarning, match="no kernel: 'scale' is a template, and nothing"):
            use()


@from_table
def test_code_that_is_complete_does_not_warn(source, arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for use in uses(source, **arguments):
            use()
