"""Tests of `rtcompile.extras.pycuda.SourceModule` without a device; tests/gpu/test_pycuda.py launches its kernels."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rtcompile
from rtcompile import CompileError, InvalidRequest, RtcompileWarning

pytest.importorskip("cupy")

from rtcompile.extras.pycuda import Function, In, InOut, Out, SourceModule

PLAIN = "__global__ void twice(float* x) { *x *= 2; }"


def kernels(source: str, **arguments: Any) -> list[str]:
    arguments = {"arch": "sm_90", **arguments}
    return list(SourceModule(source, **arguments).object_code.symbols())


@pytest.mark.needs_compiler
def test_kernels_have_their_names_as_in_c(tmp_path):
    assert kernels(PLAIN) == ["twice"]
    assert kernels(PLAIN, no_extern_c=True) == ["_Z5twicePf"]
    # A header with templates stays outside of extern "C", and kernels of a quoted header have their names.
    assert kernels(f"// sums\n#include <cuda/std/array>\n#define N 2\n{PLAIN}") == ["twice"]
    (tmp_path / "twice.cuh").write_text(PLAIN)
    assert kernels('#include "twice.cuh"\n', include_dirs=[str(tmp_path)]) == ["twice"]


@pytest.mark.needs_compiler
@pytest.mark.parametrize("head", ["", "\n#include <cuda/std/limits>\n\n"])
def test_an_error_has_the_line_of_the_source(head):
    line = head.count("\n") + 2
    with pytest.raises(CompileError, match=rf"\.cu:{line}:8: error: identifier \"y\""):
        SourceModule(f"{head}__global__ void k(float* x) {{\n  *x = y;\n}}", arch="sm_90")


@pytest.mark.needs_compiler
def test_subnormal_numbers_are_kept_as_by_nvcc():
    source = "__global__ void k(float* x) { *x = *x / 3.0f; }"
    modules = [
        SourceModule(source, arch="sm_90", options=options).object_code.code
        for options in (None, ["-ftz=true"], ["--use_fast_math"], ["-ftz=false"])
    ]
    assert modules[0] == modules[3]
    assert len(set(modules)) == 3


@pytest.mark.needs_compiler
def test_arguments_and_variables_of_pycudas_count_as_there(monkeypatch, capsys, tmp_path):
    module = SourceModule(PLAIN, arch="compute_80", code="sm_90", keep=True)
    assert str(module.object_code.arch) == "sm_90"
    folder = capsys.readouterr().out.removeprefix("*** compiler output in ").strip()
    assert Path(folder, "kernel.cubin").read_bytes() == module.object_code.code
    first = SourceModule(PLAIN, arch="sm_90").object_code
    assert SourceModule(PLAIN, arch="sm_90").object_code is first
    assert SourceModule(PLAIN, arch="sm_90", cache_dir=False).object_code is not first
    with pytest.warns(RtcompileWarning, match="RTCOMPILE_CACHE_DIR"):
        SourceModule(PLAIN, arch="sm_90", cache_dir=str(tmp_path))
    with pytest.raises(AttributeError, match=r"removed with CUDA 12; .*TextureObject"):
        module.get_texref("image")
    monkeypatch.setenv("PYCUDA_DEFAULT_NVCC_FLAGS", "-DNAME=other -O3")
    source = "__global__ void NAME(float* x) { *x *= 2; }"
    assert kernels(source) == ["other"]
    assert kernels(source, options=["-DNAME=mine"]) == ["mine"]


# --- Launches, up to CuPy's ------------------------------------------------------------------------


class Launches(list[tuple[Any, ...]]):
    """A `RawKernel` that only keeps what it is launched with."""

    num_regs = 24

    def launch(self, grid: Any, block: Any, args: Any, *, shared_mem: int, stream: Any) -> None:
        self.append((grid, block, args, shared_mem, stream))


ARRAY = object()  # of any library: `RawKernel.launch` converts arguments


def test_a_call_has_pycudas_keywords_and_arguments():
    launches = Launches()
    record = np.array([(1, 2.0)], [("n", "i4"), ("x", "f8")])

    Function(launches)(ARRAY, np.int32(3), record[0], block=(32, 1, 1), grid=(4, 1), shared=64)

    ((grid, block, args, *how),) = launches
    assert (grid, block, how) == ((4, 1), (32, 1, 1), [64, None])
    assert args == [ARRAY, np.int32(3), record[0]]
    assert Function(launches).NUM_REGS == 24
    Function(launches).prepare("P").prepared_call((1, 1), (1, 1, 1), ARRAY)
    assert launches[1][2] == [ARRAY]


@pytest.mark.parametrize("types", ["Pif", ["P", np.int32, np.dtype("f4")], [np.intp, "i", "f"]])
def test_a_prepared_call_converts_to_the_types_and_counts_arguments(types):
    launches = Launches()
    prepared = Function(launches).prepare(types)
    prepared.prepared_call((2, 1), (8, 1, 1), 0x3000, 3, 1, shared_size=16)

    grid, block, args, *how = launches[0]
    assert (grid, block, how) == ((2, 1), (8, 1, 1), [16, None])
    assert args[0] == 0x3000
    assert [(each, each.dtype.itemsize) for each in args[1:]] == [(3, 4), (1.0, 4)]
    prepared.prepared_async_call((1, 1), (1, 1, 1), "stream", 0x3000, 3, 1)
    assert launches[1][3:] == (0, "stream")
    with pytest.raises(InvalidRequest, match=r"3 types, and this call has 2 arguments"):
        prepared.prepared_call((1, 1), (1, 1, 1), ARRAY, 3)


def test_in_out_and_inout_are_pycudas_classes():
    assert issubclass(InOut, In)
    assert issubclass(InOut, Out)
    assert not issubclass(Out, In)


# --- With a context of PyCUDA's ----------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch) -> Any:
    """PyCUDA's driver module, with a context on a device of compute capability 8.0."""
    driver: Any = ModuleType("pycuda.driver")
    driver.CompileError = type("CompileError", (Exception,), {})
    device = SimpleNamespace(compute_capability=lambda: (8, 0))
    driver.Context = SimpleNamespace(get_current=lambda: driver.current, get_device=lambda: device)
    driver.current = object()
    driver.loaded = []
    driver.module_from_buffer = lambda code: (
        driver.loaded.append(code)
        or SimpleNamespace(
            get_function=lambda name: f"function {name}",
            get_global=lambda name: (0x1000, len(name)),
        )
    )
    monkeypatch.setitem(sys.modules, "pycuda.driver", driver)
    return driver


@pytest.mark.needs_compiler
def test_with_a_context_of_pycudas_the_module_and_its_functions_are_pycudas(driver):
    module = SourceModule(PLAIN)

    ((code,), arch) = driver.loaded, module.object_code.arch
    assert code == module.object_code.code
    assert str(arch) == "sm_80"
    assert module.get_function("twice") == "function twice"
    assert module.get_global("lut") == (0x1000, 3)


@pytest.mark.needs_compiler
def test_with_a_context_of_pycudas_an_error_is_pycudas(driver):
    with pytest.raises(driver.CompileError) as caught:
        SourceModule("__global__ void k() { foo(); }")
    assert isinstance(caught.value.__cause__, CompileError)
    driver.loaded.clear()
    driver.current = None  # without a current context PyCUDA is not used
    assert isinstance(SourceModule(PLAIN, arch="sm_90").module, rtcompile.RawModule)
    assert not driver.loaded
