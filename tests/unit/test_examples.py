"""Every example compiles without a GPU, for the architectures it is written for."""

from __future__ import annotations

from importlib import import_module

import pytest

from rtcompile.core import cubin

pytest.importorskip("cutlass_library", reason="the CUTLASS headers: pip install nvidia-cutlass")


@pytest.mark.parametrize(
    ("example", "arch"),
    [
        pytest.param("wmma_gemm", "sm_80", id="wmma-sm_80"),
        pytest.param("wmma_gemm", "sm_120a", id="wmma-sm_120a"),
        pytest.param("cute_tiled_copy", "sm_90a", id="cute-sm_90a"),
    ],
)
def test_example_compiles_to_a_kernel_per_name_expression(example: str, arch: str) -> None:
    module = import_module(f"examples.{example}")
    built = module.compile_only(arch)
    kernels = {kernel.name for kernel in cubin.read(built.code).kernels}
    assert {built.lowered_names[name] for name in module.NAME_EXPRESSIONS} == kernels
