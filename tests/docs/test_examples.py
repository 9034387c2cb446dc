"""Every example compiles without a GPU, and its documented limits are errors with a reason."""

import os
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import rtcompile
from examples import (
    cutlass_gemm,
    edit_and_see,
    layout_conversion,
    sm90_gemm,
    wmma_gemm,
)
from examples.matrices import Matrix, effective_strides
from rtcompile import toolkit
from tests.gpu import async_tiles
from tests.tables import from_table

pytestmark = pytest.mark.needs_compiler


@pytest.fixture(scope="module")
def cache_of_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(autouse=True)
def one_cache(cache_of_examples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let all tests share one cache."""
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(cache_of_examples))


def require_header(name: str) -> None:
    search = toolkit.current().search
    if not any(os.path.exists(os.path.join(place.path, name)) for place in search):
        pytest.skip(f"{name} is not installed")


# Example and architecture: the header that it needs, and what `make test` compiles of it.
EXAMPLES = {
    ("wmma_gemm", "sm_80"): ("crt/mma.h", "all"),
    ("wmma_gemm", "sm_120a"): ("crt/mma.h", "none"),
    ("cute_tiled_copy", "sm_90a"): ("cute/tensor.hpp", "none"),
    ("sm90_gemm", "sm_90a"): ("cuda_runtime.h", "ends"),
    ("cutlass_gemm", "sm_90a"): ("cutlass/cutlass.h", "none"),
    ("layout_conversion", "sm_80"): ("cute/tensor.hpp", "none"),
    ("pipelined_matmul", "sm_80"): ("rtcompile/async_copy.cuh", "none"),
    ("pipelined_matmul", "sm_75"): ("rtcompile/async_copy.cuh", "ends"),
    ("reductions", "sm_90a"): ("cub/block/block_reduce.cuh", "ends"),
    ("complex_numbers", "sm_80"): ("cupy/complex.cuh", "ends"),
    ("generated_headers", "sm_80"): ("cuda_runtime.h", "all"),
    ("curand_pi", "sm_80"): ("curand_kernel.h", "all"),
    ("cluster_sum", "sm_90a"): ("cooperative_groups.h", "all"),
    ("published_styles", "sm_80"): ("cuda_runtime.h", "all"),
}


@pytest.mark.parametrize(
    ("example", "arch", "what"),
    [
        pytest.param(*at, what, id="-".join((*at, what)), marks=[] if quick else pytest.mark.slow)
        for at, (_, everyday) in EXAMPLES.items()
        for what, quick in (("all", everyday == "all"), ("ends", everyday == "ends"))
        if what == "all" or quick
    ],
)
def test_example_compiles_to_a_kernel_per_name_expression(example, arch, what):
    """Each instance is compiled, or the first and the last."""
    require_header(EXAMPLES[example, arch][0])
    module = import_module(f"examples.{example}")
    if what == "all":
        built = module.compile_only(arch)
        named = getattr(module, "NAME_EXPRESSIONS", built.lowered_names)
    else:
        named = module.NAME_EXPRESSIONS[0], module.NAME_EXPRESSIONS[-1]
        built = rtcompile.compile(
            module.SOURCE, options=module.OPTIONS, arch=arch, name_expressions=named
        )
    assert str(built.arch) == arch
    assert built.build.backend == "nvrtc"
    kernels = {kernel.symbol: kernel for kernel in built.report().kernels}
    assert {built.lowered_names[name] for name in named} == {*kernels}
    if example == "sm90_gemm":  # it keeps its sums in registers
        assert {kernel.stack_bytes for kernel in kernels.values()} == {0}
        sizes = [[size for _, size in kernel.parameters] for kernel in kernels.values()]
        assert sizes == [[128, 128, 128, 4, 4, 4]] * len(named)


def test_a_failing_edit_keeps_the_last_good_kernel(tmp_path):
    pytest.importorskip("cupy")
    seen = {each.edit: each for each in edit_and_see.loop(tmp_path)}
    assert [edit for edit, each in seen.items() if each.error] == ["with a mistake"]
    assert '"two" is undefined' in seen["with a mistake"].error
    kernels = {edit: each.report.kernels[0] for edit, each in seen.items()}
    shared = {edit: kernel.shared_bytes for edit, kernel in kernels.items()}
    assert shared["as it was"] < shared["through shared memory"] == shared["with a mistake"]
    assert kernels["bound to 128 threads"].occupancy.block == 128


def test_a_hopper_kernel_for_sm_90_is_an_error_that_names_sm_90a():
    given = {"options": sm90_gemm.OPTIONS, "name_expressions": sm90_gemm.NAME_EXPRESSIONS[:1]}
    with pytest.raises(rtcompile.CompileError, match="sm_90a"):
        rtcompile.compile(sm90_gemm.SOURCE, arch="sm_90", **given)


@pytest.mark.slow  # each takes CuTe's whole time
def test_only_a_scratch_with_a_valid_vector_width_compiles():
    require_header("cute/tensor.hpp")
    with pytest.raises(rtcompile.CompileError, match="no vector width is legal"):
        layout_conversion.compile_impossible()
    given = {"options": layout_conversion.OPTIONS, "name_expressions": ["broadcast_sums<16, 4, 8>"]}
    assert rtcompile.compile(layout_conversion.SOURCE, arch="sm_90a", **given).lowered_names


@pytest.mark.parametrize(
    ("count", "is_breakpoint"),
    [(len(cutlass_gemm.OPTIONS), False), pytest.param(2, True, marks=pytest.mark.slow)],
)
def test_cutlass_divides_on_the_device_with_our_options(count, is_breakpoint):
    """Without the option for 128-bit types, CUTLASS's division is a breakpoint, and its plan divides."""
    require_header("cutlass/fast_math.h")
    source = """
    #include <cutlass/fast_math.h>
    extern "C" __global__ void plan(cutlass::FastDivmodU64* out, int n) { *out = {(unsigned)n}; }
    """
    options = cutlass_gemm.OPTIONS[:count]
    ptx = rtcompile.compile(source, options=options, arch="sm_90a", target="ptx").code
    assert (b"brkpt" in ptx) == is_breakpoint


WIDTHS = {
    "signed char, 16, 16": 16,
    "signed char, 16, 2": 0,  # bytes at odd addresses
    "short, 2, 4": 4,
    "short, 1, 16": 0,
    "short, 6, 8": 4,
    "float, 1": 4,
    "double, 3, 16": 8,
    "double, 1, 4": 4,  # at a multiple of 4
}


@pytest.mark.parametrize("widths", [WIDTHS, {"float4, 1, 16": 0}], ids=["sm_80", "sm_75"])
def test_async_width_is_the_widest_legal_copy_or_none_where_the_hardware_has_none(widths):
    lines = [f"static_assert(rtcompile::async_width<{a}>() == {n});" for a, n in widths.items()]
    source = "\n".join(["#include <rtcompile/async_copy.cuh>", *lines])
    rtcompile.compile(source, arch="sm_80" if widths is WIDTHS else "sm_75")


@pytest.mark.parametrize(
    ("arch", "part"),
    [
        ("sm_75", slice(0, None, 2)),
        ("sm_80", slice(1, None, 2)),
        pytest.param("sm_75", slice(1, None, 2), marks=pytest.mark.slow),
        pytest.param("sm_80", slice(0, None, 2), marks=pytest.mark.slow),
    ],
)
def test_tiles_of_every_element_size_and_alignment_compile(arch, part):
    names = [tile.expression for tile in async_tiles.TILES[part]]
    given = {"options": ("-std=c++17",), "arch": arch, "name_expressions": names}
    assert rtcompile.compile(async_tiles.SOURCE, **given).lowered_names.keys() == set(names)


def test_an_illegal_async_copy_is_an_error_that_names_the_legal_ones():
    source = """
    #include <rtcompile/async_copy.cuh>
    __global__ void f(short* x) { __shared__ short s[1]; rtcompile::cp_async<2>(s, x); }
    """
    with pytest.raises(rtcompile.CompileError, match=r"4, 8 or 16 bytes; rtcompile::copy_async"):
        rtcompile.compile(source, arch="sm_80")


@pytest.mark.parametrize(
    ("shape", "strides", "message"),
    [
        pytest.param((64, 16), (16, 1), None, id="whole eights"),
        pytest.param((64, 9), (16, 1), r"shape \(64, 16\).*stores 16 bytes or none", id="cut"),
        pytest.param((64, 16), (8, 1), "must not overlap", id="overlapping rows"),
        pytest.param((64, 16), (1, 64), "rows must be contiguous", id="column-major"),
    ],
)
def test_a_result_is_rejected_if_tma_would_write_outside_it(monkeypatch, shape, strides, message):
    out = Matrix(4096, shape, strides, "float16", 0)
    monkeypatch.setattr(sm90_gemm.matrices, "matrix", lambda name, array: out)
    left = Matrix(8192, (64, 32), (32, 1), "float16", 0)
    if message is None:
        assert sm90_gemm.result("out", None, left, 9) is out
        return
    with pytest.raises(ValueError, match=message):
        sm90_gemm.result("out", None, left, 9)


@from_table
def test_a_dimension_of_one_has_the_stride_of_a_contiguous_matrix(shape, strides, expected):
    assert effective_strides(shape, strides) == expected


def test_a_gpu_without_wgmma_is_rejected_by_name(monkeypatch):
    cupy = pytest.importorskip("cupy")
    good = Matrix(4096, (64, 64), (64, 1), "float16", 0)
    monkeypatch.setattr(sm90_gemm.matrices, "matrix", lambda name, array: good)
    monkeypatch.setattr(
        cupy.cuda, "Device", lambda ordinal: SimpleNamespace(compute_capability="120")
    )
    with pytest.raises(ValueError, match=r"needs a Hopper GPU .* capability 120"):
        sm90_gemm.matmul(None, None)


def test_to_bfloat16_rounds_to_nearest_even():
    one_ulp = 2.0**-7
    values = np.float32([1 + one_ulp / 2, 1 + 3 * one_ulp / 2, 1 + 0.51 * one_ulp, -1 - one_ulp])
    expected = np.float32([1, 1 + 2 * one_ulp, 1 + one_ulp, -1 - one_ulp])
    np.testing.assert_array_equal(wmma_gemm.from_bfloat16(wmma_gemm.to_bfloat16(values)), expected)
