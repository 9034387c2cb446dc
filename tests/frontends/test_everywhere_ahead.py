"""CuPy's headers are precompiled with a program's first kernel of CuPy, but not at once for other kernels."""

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

cupy = pytest.importorskip("cupy")

from cupy._core import core  # noqa: E402

import rtcompile  # noqa: E402
from rtcompile.compilers import nvrtc, pch  # noqa: E402
from rtcompile.frontends import cupy_hook  # noqa: E402
from rtcompile.lookup.find import query_of  # noqa: E402
from rtcompile.request.object_code import ObjectCode  # noqa: E402
from rtcompile.request.request import CompileRequest  # noqa: E402
from rtcompile.settings import Settings  # noqa: E402
from rtcompile.workers import pool  # noqa: E402
from tests.processes import python  # noqa: E402

pytestmark = pytest.mark.needs_compiler

OWN = "".join(f"#include <{header}>\n" for header in core._cupy_header_list)
FILL = 'extern "C" __global__ void cupy_fill(CArray<float, 1, 1, 1> a) { a[0] = %d; }'
# The begin of CuPy's reductions by CUB, and the last test of the macro for the pass.
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


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ObjectCode]:
    """Build a source as `install()` does; no header is in the making, of an earlier test with another cache."""
    pch._end()
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(pool, "slots", lambda: 2)
    monkeypatch.setattr(cupy_hook, "_has_precompiled_cub", True)

    def build(source: str, options: tuple[str, ...] = (), **changes: Any) -> ObjectCode:
        options = (*core.assemble_cupy_compiler_options(("--std=c++17", *options)), "-ftz=true")
        source, options = cupy_hook.with_pass_in_text(source, options)
        request = CompileRequest(source, options, arch="sm_80")
        settings = Settings.from_environ().override(recompile=True, **changes)
        code = cupy_hook.build(query_of(request, settings))
        assert code is not None
        return code

    return build


def test_the_first_kernel_of_cupy_creates_the_header_and_the_second_uses_it(
    built, tmp_path, monkeypatch
):
    built(OWN + FILL % 1)
    assert len(list((tmp_path / "pch").glob("*.pch"))) == 1

    found, find = [], pch.Prefix.find
    monkeypatch.setattr(pch.Prefix, "find", lambda self: found.append(find(self)) or found[-1])
    with_it, without = built(OWN + FILL % 2), built(OWN + FILL % 2, pch=False)
    assert found
    assert all(found)
    assert with_it.code == without.code
    assert len(with_it.build.headers) == len(without.build.headers) > 50


def test_an_idle_core_makes_the_header_of_reductions_by_cub_before_the_first(
    built, tmp_path, monkeypatch
):
    monkeypatch.setattr(cupy_hook, "_has_precompiled_cub", False)
    monkeypatch.setattr(pool, "idle", lambda: 8)
    monkeypatch.setattr(pch, "_unused", {})
    # A job that gives way to all others would take minutes while other tests keep the cores busy.
    run = nvrtc._run
    monkeypatch.setattr(nvrtc, "_run", lambda *given, aside=False, **named: run(*given, **named))
    built(OWN + FILL % 1)
    headers = functools.partial((tmp_path / "pch").glob, "*.pch")
    deadline = time.monotonic() + 120
    while (len(list(headers())) < 2 or pch._making) and time.monotonic() < deadline:
        time.sleep(0.05)
    made: list[bool] = []
    publish = pch.Prefix._publish
    monkeypatch.setattr(pch.Prefix, "_publish", lambda *given: made.append(publish(*given)))

    built(REDUCTION, ("-DCUB_DISABLE_BF16_SUPPORT", "-DFIRST_PASS=1"))

    assert not made
    assert not pch._unused  # a build has used it


def test_another_kernel_creates_no_header_at_first(built, tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "idle", lambda: 0)
    built("#include <cuda/std/type_traits>\n__global__ void k() {}")
    assert not list((tmp_path / "pch").glob("*.pch"))
    assert pch.expected.get() == 1


# In another process, since CuPy uses the NVRTC that a process loaded first.
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


def test_the_code_equals_that_of_cupy_alone(tmp_path):
    environ = {name: value for name, value in os.environ.items() if name != "RTCOMPILE_TEST_CUDA13"}
    environ["CUPY_CACHE_DIR"] = environ["RTCOMPILE_CACHE_DIR"] = str(tmp_path)
    done = python(CODE_OF_BOTH, env=environ)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_macro_in_the_text_gives_the_same_code_as_in_the_options(compiles):
    options = core.assemble_cupy_compiler_options(("-DFIRST_PASS=1", "-DCUB_DISABLE_BF16_SUPPORT"))
    source, remaining = cupy_hook.with_pass_in_text(REDUCTION, options)

    assert "-DFIRST_PASS=1" not in remaining
    assert "#define FIRST_PASS 1\ntypedef" in source
    assert source.count("\n") == REDUCTION.count("\n")
    if not compiles:
        return
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
def test_a_source_that_is_not_cupys_keeps_its_options(source, options):
    assert cupy_hook.with_pass_in_text(source, options) == (source, options)
