"""Tests of `advise`: its advice depends only on the code and the architecture."""

import json

import pytest

import rtcompile
from rtcompile.cli import main
from rtcompile.extras.resources import best_blocks, limits_of
from rtcompile.extras.resources.advice import Advice
from rtcompile.request.values import Arch

pytestmark = pytest.mark.needs_compiler

PLAIN = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= 2; }'
# Keeps 128 numbers at a time, which do not fit into 64 registers.
HUNGRY = """extern "C" __global__ void BOUNDS k(float* x) {
  float v[128];
  #pragma unroll
  for (int i = 0; i < 128; i++) v[i] = x[i * 64 + threadIdx.x];
  __syncthreads();
  float sum = 0;
  #pragma unroll
  for (int i = 0; i < 128; i++) sum += v[i] * v[(i * 7 + 1) & 127];
  x[threadIdx.x] = sum;
}"""
DYNAMIC = """extern "C" __global__ void k(float* x) {
  extern __shared__ float s[];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[threadIdx.x ^ 1];
}"""


def kernel_of(source: str, *options: str, arch: str = "sm_90a"):
    pytest.importorskip("cupy")
    return rtcompile.RawKernel(source, "k", options, arch=arch)


def test_without_a_limit_the_largest_and_the_smallest_block_of_full_occupancy_are_named():
    found = kernel_of(PLAIN).advise()
    assert (found.best.block, found.best.blocks, found.best.share) == (1024, 2, 1.0)
    assert (found.smallest.block, found.smallest.blocks) == (64, 32)
    assert found.notes == ("the kernel has no __launch_bounds__",)


def test_registers_limit_a_kernel_that_keeps_many():
    found = kernel_of(HUNGRY, "-DBOUNDS=").advise()
    assert found.registers > 64
    assert found.best.limited_by == ("registers",)
    assert "its registers allow blocks of up to" in str(found)
    assert (found.spills.stores, found.local_bytes) == (0, 0)


@pytest.mark.parametrize("bounds", ["", "__launch_bounds__(128)"])
def test_launch_bounds_are_tried_by_a_rebuild_that_reports_their_cost(bounds):
    found = kernel_of(HUNGRY, f"-DBOUNDS={bounds}").advise(launch_bounds=(256, 4))
    assert found.bounded.registers <= 64 < found.registers
    assert found.bounded.spills.stores > found.spills.stores == 0
    assert found.bounded.best.share > found.best.share
    assert "rebuilt with __launch_bounds__(256, 4): " in str(found)


def test_bounds_without_effect_are_an_error():
    kernel = kernel_of(HUNGRY, "-DBOUNDS=__attribute__((launch_bounds(128)))")
    with pytest.raises(rtcompile.InvalidRequest, match="the code allows 128 threads"):
        kernel.advise(launch_bounds=256)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((), "must be the threads of a block"),
        ("256", "must be the threads of a block"),
        (0, "launch_bounds' threads must be"),
        ((256, -1), "launch_bounds' blocks must be"),
    ],
)
def test_invalid_bounds_are_rejected(bounds, message):
    with pytest.raises(rtcompile.InvalidRequest, match=message):
        kernel_of(PLAIN).advise(launch_bounds=bounds)


def test_dynamic_shared_memory_is_counted_explained_and_may_depend_on_the_block():
    kernel = kernel_of(DYNAMIC)
    assert "give shared_mem=" in str(kernel.advise())
    found = kernel.advise(shared_mem=lambda threads: 160 * threads)
    assert found.best.share < 1.0
    assert found.best.limited_by == ("shared memory",)
    assert found.dynamic_shared == 160 * found.best.block
    found = kernel.advise(shared_mem=100_000)
    assert found.best.blocks == 2
    assert "max_dynamic_shared_size_bytes = 100000" in str(found)
    found = kernel_of(DYNAMIC, arch="sm_86").advise(shared_mem=200_000)
    assert found.best is None
    assert "200000 B of dynamic shared memory are more than the 101376 B" in str(found)


def test_a_block_that_the_source_fixes_is_the_only_one():
    built = rtcompile.compile(
        'extern "C" __global__ void __block_size__((96, 2, 1)) k(float* x) { *x = 1; }',
        arch="sm_90a",
    )
    (found,) = Advice.of(built)
    assert found.best == found.smallest
    assert found.best.block == 192


def test_the_smallest_block_is_no_smaller_than_needed():
    limits = limits_of(Arch(8, 6))
    assert limits is not None
    best, smallest = best_blocks(
        limits, registers=32, shared=lambda _: 0, sizes=range(32, 1025, 32)
    )
    assert (best.block, smallest.block) == (768, 96)


def test_an_architecture_of_the_future_is_rejected(monkeypatch):
    built = rtcompile.compile(PLAIN, arch="sm_90a")
    monkeypatch.setattr("rtcompile.extras.resources.limits_of", lambda arch: None)
    with pytest.raises(rtcompile.InvalidRequest, match="does not know the limits of sm_90a"):
        Advice.of(built)


def test_inspect_shows_advice(tmp_path, capsys):
    file = tmp_path / "k.cu"
    file.write_text(HUNGRY)
    arguments = ["inspect", str(file), "--arch", "sm_90a", "-D", "BOUNDS="]
    assert main([*arguments, "--launch-bounds", "256,4"]) == 0
    shown = capsys.readouterr().out
    assert "highest occupancy: " in shown
    assert "rebuilt with __launch_bounds__(256, 4)" in shown
    assert main([*arguments, "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["advice"][0]["best"]["limited_by"] == ["registers"]
    assert main([*arguments, "--launch-bounds", "many"]) == 2
