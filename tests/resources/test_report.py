"""A report agrees with ptxas's output for the same kernel, and its occupancy with CUDA's own cuda_occupancy.h."""

import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import rtcompile
from rtcompile import toolkit
from rtcompile.errors import InvalidRequest
from rtcompile.extras.resources import Occupancy, Report, Spills, limits_of, occupancy
from rtcompile.request.values import Arch
from rtcompile.styling import table
from tests.processes import ran

pytestmark = pytest.mark.needs_compiler

SPILLING = """template<class T> __global__ void f(T* x) {
  __shared__ T s[64];
  T a[40];
  for (int i = 0; i < 40; i++) a[i] = x[i * 3 + threadIdx.x];
  s[threadIdx.x] = a[0];
  __syncthreads();
  for (int i = 0; i < 40; i++) x[i] = a[i] * a[39 - i] + s[i];
}
extern "C" __global__ void __launch_bounds__(256) g(int* x) { *x = 1; }
"""


@pytest.fixture(scope="module")
def build() -> rtcompile.ObjectCode:
    return rtcompile.compile(
        SPILLING,
        arch="sm_80",
        options=("-maxrregcount=24", "-Xptxas=-v"),
        name_expressions=("f<float>",),
    )


def test_registers_shared_memory_and_spills_are_those_of_ptxas(build):
    (found,) = Report.of(build, kernel="f<float>").kernels
    numbers = re.search(
        rf"properties for {found.symbol}\n[^\n]*?(\d+) bytes spill stores, (\d+) bytes spill loads"
        r"[^:]*: Used (\d+) registers[^\n]*?(\d+) bytes smem",
        build.build.log,
    )
    stores, loads, registers, shared = map(int, numbers.groups())
    assert stores > 0
    assert found.spills == Spills(stores, loads)
    assert (found.registers, found.shared_bytes) == (registers, shared)


def test_the_table_names_kernels_as_they_were_requested(build):
    text = str(Report.of(build, block=128))
    assert text.startswith("sm_80, 2 kernels\nkernel")
    assert "\nf<float> " in text
    assert "registers" in text


def test_an_architecture_of_the_future_has_no_occupancy(build, monkeypatch):
    monkeypatch.setattr("rtcompile.extras.resources.limits_of", lambda arch: None)
    assert [kernel.occupancy for kernel in Report.of(build, block=128).kernels] == [None, None]


def test_kernels_and_variables_are_listed_by_their_cpp_names():
    source = """namespace n { __device__ int calls; __global__ void k(int* x) { *x = calls++; } }
    __device__ int next() { static int last; return last++; }
    extern "C" __global__ void plain(int* x) { *x = next(); }"""
    code = rtcompile.compile(source, arch="sm_80")
    assert sorted(code.symbols().values()) == ["n::k", "plain"]
    assert sorted(code.symbols("variable").values()) == ["n::calls", "next()::last"]
    ptx = rtcompile.compile(source, arch="compute_80")
    assert set(ptx.symbols()) == set(code.symbols())
    assert rtcompile.compile(source, arch="sm_80", target="ltoir").symbols() == {}
    with pytest.raises(InvalidRequest, match="kind must be"):
        code.symbols("function")


def _best(source: str, arch: str = "sm_90a", **more: int) -> Occupancy:
    (found,) = rtcompile.compile(source, arch=arch).report("k", **more).kernels
    assert found.occupancy is not None
    return found.occupancy


PLAIN = 'extern "C" __global__ void BOUNDS k(float* x) { x[threadIdx.x] *= 2; }'


@pytest.mark.parametrize(
    ("bounds", "block", "blocks"),
    [
        pytest.param("", 1024, 2, id="none"),
        pytest.param("__launch_bounds__(256)", 256, 8, id="launch bounds"),
        pytest.param("__block_size__((96, 2, 1))", 192, 10, id="a block that the source fixes"),
    ],
)
def test_without_a_block_the_largest_one_of_highest_occupancy_is_reported(bounds, block, blocks):
    found = _best(PLAIN.replace("BOUNDS", bounds))
    assert (found.block, found.blocks) == (block, blocks)


def test_a_block_that_launch_bounds_forbid_does_not_fit():
    source = PLAIN.replace("BOUNDS", "__launch_bounds__(256)")
    found = _best(source, block=288)
    assert (found.blocks, found.share, found.limited_by) == (0, 0, ("max threads",))
    assert _best(source, block=256).blocks == 8


def test_registers_limit_a_kernel_that_keeps_many():
    found = _best("""extern "C" __global__ void k(float* x) {
      float v[128];
      #pragma unroll
      for (int i = 0; i < 128; i++) v[i] = x[i * 64 + threadIdx.x];
      __syncthreads();
      float sum = 0;
      #pragma unroll
      for (int i = 0; i < 128; i++) sum += v[i] * v[(i * 7 + 1) & 127];
      x[threadIdx.x] = sum;
    }""")
    assert found.limited_by == ("registers",)
    assert found.share < 1


def test_dynamic_shared_memory_lowers_the_occupancy():
    for shared, blocks in ((0, 16), (100 << 10, 2)):
        assert _best(PLAIN.replace("BOUNDS", ""), block=128, dynamic_shared=shared).blocks == blocks
    assert _best(PLAIN.replace("BOUNDS", ""), dynamic_shared=100_000).blocks == 2
    found = _best(PLAIN.replace("BOUNDS", ""), "sm_86", dynamic_shared=200_000)
    assert (found.blocks, found.share, found.limited_by) == (0, 0, ("shared memory",))


def test_a_cubin_alone_is_reported_without_spills(build):
    found = Report.of(build.code).kernels
    assert {kernel.spills for kernel in found} == {None}
    assert {kernel.name for kernel in found} == {build.lowered_names["f<float>"], "g"}


def test_what_cannot_be_reported_is_an_error_with_the_reason(build):
    with pytest.raises(InvalidRequest, match=r"no kernel 'nope' in the code; it has .*f<float>"):
        Report.of(build, kernel="nope")
    with pytest.raises(InvalidRequest, match="cubin"):
        Report.of(b".version 8.0\n.target sm_80\n")
    with pytest.raises(InvalidRequest, match="block must be an integer from 1 to 1,024, not int 0"):
        Report.of(build, block=0)


def test_a_table_too_wide_for_a_terminal_becomes_a_few_lines_for_each_row():
    header, rows = (
        ["kernel", "registers", "limited by"],
        [["f<float>", 8, None], ["g", 10, "warps"]],
    )
    assert table(header, rows, width=40) == (
        "kernel    registers  limited by\nf<float>          8\ng                10  warps"
    )
    assert table(header, rows, width=20) == (
        "f<float>\n  registers   8\ng\n  registers   10\n  limited by  warps"
    )


# --- occupancy ------------------------------------------------------------------------------------

ARCHS = ["50", "53", "60", "61", "70", "75", "80", "86", "87", "89", "90", "100", "120"]
ORACLE = Path(__file__).with_name("occupancy_oracle.cpp").read_text()


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
def test_blocks_are_those_that_cudas_own_header_computes(tmp_path):
    include = next(d.path for d in toolkit.current().search if d.label == "cudart")
    (tmp_path / "oracle.cpp").write_text(ORACLE)
    program = tmp_path / "oracle"
    subprocess.run(["g++", "-I", include, "-o", program, tmp_path / "oracle.cpp"], check=True)
    ours, lines = [], []
    threads, counts, sizes = (
        (32, 33, 96, 128, 256, 1000, 1024),
        (1, 24, 40, 63, 128, 255),
        (0, 1, 5000, 49152),
    )
    for name, block, registers, shared in itertools.product(ARCHS, threads, counts, sizes):
        arch = Arch.parse(name)
        limits = limits_of(arch)
        device = (limits.warps * 32, limits.block_registers, limits.shared, limits.block_shared)
        numbers = arch.major, arch.minor, *device, limits.reserved_shared, block, registers, shared
        lines.append(" ".join(map(str, numbers)))
        ours.append(occupancy(limits, block=block, registers=registers, shared=shared).blocks)
    done = ran(program, input="\n".join(lines), check=True)
    theirs = [int(line) for line in done.stdout.split()]
    wrong = [case for case, a, b in zip(lines, ours, theirs, strict=True) if a != b]
    assert wrong == []


def test_the_limit_of_a_kernel_is_named():
    limits = limits_of(Arch(9, 0))
    found = occupancy(limits, block=256, registers=128, shared=0)
    assert (found.blocks, found.share, found.limited_by) == (2, 0.25, ("registers",))
    found = occupancy(limits, block=128, registers=32, shared=100 << 10)
    assert found.limited_by == ("shared memory",)
    assert occupancy(limits, block=1024, registers=32, shared=0).share == 1.0
    with pytest.raises(ValueError, match="1 to 1024 threads, not 2048"):
        occupancy(limits, block=2048, registers=32, shared=0)
    assert limits_of(Arch(20, 0)) is None
