"""CuPy's own headers are precompiled beside a program's first kernel, and for no other kernels."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

cupy = pytest.importorskip("cupy")

from cupy._core import _accelerator, core  # noqa: E402

import rtcompile  # noqa: E402
from rtcompile.compilers import pch as precompiled  # noqa: E402
from rtcompile.compilers import pch_maker  # noqa: E402
from rtcompile.frontends import cupy_builds, cupy_requests  # noqa: E402
from rtcompile.request import cxx  # noqa: E402
from rtcompile.request.request import CompileRequest  # noqa: E402
from rtcompile.settings import Settings  # noqa: E402

pytestmark = pytest.mark.needs_compiler

OWN = "".join(f"#include <{header}>\n" for header in core._cupy_header_list)
FILL = 'extern "C" __global__ void cupy_fill(CArray<float, 1, 1, 1> a) { a[0] = %d; }'
# As CuPy begins a reduction by CUB, and the last thing that it asks the macro for its pass for.
REDUCTION = (
    f"{OWN}\n#include <cub/block/block_reduce.cuh>\n#include <cub/block/block_load.cuh>\n\n"
    "typedef float type_in0_raw;\n"
    "#if defined FIRST_PASS\ntypedef float out;\n#else\ntypedef double out;\n#endif\n"
    "typedef cub::BlockReduce<float, 128> Reduce;\n"
    'extern "C" __global__ void cupy_cub_sum(const float* in, out* to) {\n'
    "  __shared__ typename Reduce::TempStorage room;\n"
    "  float sum = Reduce(room).Sum(in[threadIdx.x]);\n"
    "  if (threadIdx.x == 0) *to = sum + __LINE__;\n}\n"
)
ARCH = ("-arch=sm_80", "cubin")
Begin = Callable[[str], list[Path]]


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Begin as a process that asks for its first kernel; return the headers that are there then."""
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(pch_maker, "NICE_WHEN_AWAITED", 0)
    monkeypatch.setattr(cupy_builds, "_begun", threading.Lock())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    before = _accelerator.get_reduction_accelerators()
    _accelerator.set_reduction_accelerators([])

    def begun(source: str) -> list[Path]:
        options = (*core.assemble_cupy_compiler_options(()), "-ftz=true")
        cupy_builds.precompile_ahead(
            CompileRequest(source, options, arch="sm_80"), Settings.from_environ()
        )
        for name in (cupy_builds.MAKER, precompiled.MAKER):
            for thread in threading.enumerate():
                if thread.name == name:
                    thread.join()
        return list((tmp_path / "pch").glob("*.pch"))

    yield begun
    _accelerator.set_reduction_accelerators(before)


def test_the_first_kernel_of_cupys_own_has_its_header_made_and_the_second_uses_it(begin: Begin):
    assert len(begin(OWN + FILL % 1)) == 1

    options = (*core.assemble_cupy_compiler_options(()), "-ftz=true")
    kernel = CompileRequest(OWN + FILL % 2, options, arch="sm_80")
    [with_it, without] = [
        rtcompile.compile(**_arguments(kernel), pch=pch, recompile=True) for pch in (True, False)
    ]
    assert with_it.code == without.code
    assert len(with_it.build.headers) == len(without.build.headers) > 50


def _arguments(request: CompileRequest) -> dict[str, object]:
    return {"source": request.source, "options": request.options, "arch": str(request.arch)}


# In a process of its own: CuPy's NVRTC is the one that a process loaded first.
CODE_OF_BOTH = f"""
from cupy._core import core
from cupy.cuda import compiler, function
import rtcompile

codes = []

class Module:
    def load(self, code):
        codes.append(code.rstrip(bytes(1)))  # of which CuPy takes one off

    def _set_mapping(self, mapping):
        pass

function.Module = Module
compiler._get_arch_for_options_for_nvrtc = lambda _: {ARCH!r}
source, options = {OWN + FILL % 3!r}, core.assemble_cupy_compiler_options(())
compiler._compile_module_with_cache(source, options, arch="80")
with rtcompile.install():
    compiler._compile_module_with_cache(source, options, arch="80")
assert codes[0] == codes[1]
"""


def test_the_code_is_that_of_cupy_alone(tmp_path: Path):
    environ = {name: value for name, value in os.environ.items() if name != "RTCOMPILE_TEST_CUDA13"}
    environ["CUPY_CACHE_DIR"] = environ["RTCOMPILE_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-c", CODE_OF_BOTH]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_header_for_reductions_is_what_they_open_with():
    (own, _), (by_cub, options) = cupy_builds.openings(cores=4)

    assert own == OWN
    assert cupy_builds.openings(cores=2) == cupy_builds.openings(cores=4)[:1]
    assert cxx.split_prefix(by_cub)[0] == cxx.split_prefix(REDUCTION)[0]
    given = ("-DFIRST_PASS=1", "--std=c++17", "-DCUB_DISABLE_BF16_SUPPORT")
    given_to_cupy = (*core.assemble_cupy_compiler_options(given), "-ftz=true")
    assert cupy_requests.with_pass_in_text(REDUCTION, given_to_cupy)[1] == options


def test_a_foreign_kernel_has_none_made(begin: Begin):
    assert begin("#include <cuda/std/type_traits>\n__global__ void k() {}") == []


@pytest.mark.parametrize(("name", "value"), [("RTCOMPILE_PCH", "0"), ("CUPY_CACHE_IN_MEMORY", "1")])
def test_none_is_made_where_none_is_wanted_or_kept(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, name: str, value: str
):
    monkeypatch.setenv(name, value)
    assert begin(OWN + FILL % 1) == []


def test_none_is_made_on_a_single_core(begin: Begin, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert begin(OWN + FILL % 1) == []


def test_a_pass_in_the_text_gives_the_code_of_one_in_the_options():
    options = core.assemble_cupy_compiler_options(("-DFIRST_PASS=1", "-DCUB_DISABLE_BF16_SUPPORT"))
    source, remaining = cupy_requests.with_pass_in_text(REDUCTION, options)

    assert "-DFIRST_PASS=1" not in remaining
    assert "#define FIRST_PASS 1\ntypedef" in source
    assert source.count("\n") == REDUCTION.count("\n")
    codes = [
        rtcompile.compile(text, options=given, arch="sm_80", pch=False).code
        for text, given in ((source, remaining), (REDUCTION, options))
    ]
    assert codes[0] == codes[1]


@pytest.mark.parametrize(
    ("source", "options"),
    [
        pytest.param(REDUCTION, ("-DFIRST_PASS=2",), id="another value"),
        pytest.param("#include <own.h>\n\n" + REDUCTION, ("-DFIRST_PASS=1",), id="other headers"),
        pytest.param(REDUCTION.replace("\n\ntype", "\ntype"), ("-DFIRST_PASS=1",), id="no room"),
        pytest.param(REDUCTION, ("-DFIRST_PASS=1", "-DSECOND_PASS=1"), id="both"),
    ],
)
def test_a_source_that_is_not_cupys_keeps_its_options(source: str, options: tuple[str, ...]):
    assert cupy_requests.with_pass_in_text(source, options) == (source, options)
