"""Tests of NVCC in a worker: every kind of code, name expressions, traces, and failures."""

import struct

import pytest

from rtcompile import cubin, toolkit
from rtcompile.build import plan
from rtcompile.compilers import nvcc
from rtcompile.cubin import kind_of
from rtcompile.errors import ToolkitNotFound
from rtcompile.request.units import Compiled, CompileFailure, Limits, TranslationUnit
from rtcompile.request.values import Arch
from rtcompile.toolkit.model import Toolchain
from rtcompile.toolkit.search import find
from tests.jobs import ENDLESS

pytestmark = pytest.mark.needs_nvcc

SM_90A = ("--generate-code=arch=compute_90a,code=sm_90a",)
KERNEL = 'extern "C" __global__ void k(float* p) { p[threadIdx.x] = 1.0f; }'
NAMES = """
namespace ns { struct S { float x; }; template <class T, int N> __global__ void g(T* p) { p[N] = T(); } }
template <class T> __global__ void f(T* p, int n) { if (threadIdx.x < n) p[threadIdx.x] += T(2); }
__global__ void plain(float* p) { *p = 1; }
extern "C" __global__ void unmangled(float* p) { *p = 2; }
__constant__ float coefficients[16];
namespace ns { __device__ int counter; }
"""
LOWERED = {
    "f<float>": "_Z1fIfEvPT_i",
    "ns::g<ns::S, (3 > 2)>": "_ZN2ns1gINS_1SELi1EEEvPT_",
    "(void (*)(int*, int))f": "_Z1fIiEvPT_i",
    "plain": "_Z5plainPf",
    " unmangled ": "unmangled",
    "&coefficients": "coefficients",
    "coefficients": "coefficients",
    "ns::counter": "_ZN2ns7counterE",
}


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return toolkit.current()


def make_unit(
    source: str = KERNEL,
    *,
    name: str = "kernel.cu",
    flags: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
    target: str = "cubin",
) -> TranslationUnit:
    arch = SM_90A
    if target == "ltoir":
        arch = ("--generate-code=arch=compute_90a,code=lto_90a",)
    return TranslationUnit(source, name, (*arch, *flags), names, target, Arch(9, 0, "a"))


def compiled(unit: TranslationUnit, toolchain: Toolchain) -> Compiled:
    outcome = nvcc.compile(unit, toolchain, limits=Limits(timeout=120))
    assert isinstance(outcome, Compiled), outcome
    return outcome


def failure_of(
    unit: TranslationUnit, toolchain: Toolchain, limits: Limits | None = None
) -> CompileFailure:
    outcome = nvcc.compile(unit, toolchain, limits=limits or Limits(timeout=120))
    assert isinstance(outcome, CompileFailure), outcome
    return outcome


def code_of_functions(code: bytes) -> dict[str, bytes]:
    """Return the machine code of a cubin by section name."""
    (offset,), (count, names) = (
        struct.unpack_from("<Q", code, 40),
        struct.unpack_from("<HH", code, 60),
    )
    headers = [struct.unpack_from("<IIQQQQ", code, offset + 64 * i) for i in range(count)]
    strings = code[headers[names][4] :]
    sections = {strings[h[0] : strings.index(b"\0", h[0])].decode(): h for h in headers}
    return {n: code[h[4] : h[4] + h[5]] for n, h in sections.items() if n.startswith(".text.")}


@pytest.mark.some
@pytest.mark.parametrize("names", [(), ("f<float>",)], ids=["plain", "with names"])
@pytest.mark.parametrize("target", ["cubin", "object", "ptx", "ltoir", "fatbin"])
def test_every_kind_of_code_is_produced(target, names, toolchain):
    result = compiled(make_unit(NAMES, names=names, target=target), toolchain)

    kind = {"object": "cubin"}.get(target, target)
    assert (result.kind, kind_of(result.code)) == (target, kind)
    assert dict(result.lowered_names) == {name: LOWERED[name] for name in names}


def test_name_expressions_are_lowered_as_nvrtc_lowers_them(toolchain):
    source = "#include <vector>\n" + NAMES
    result = compiled(make_unit(source, names=tuple(LOWERED)), toolchain)

    assert dict(result.lowered_names) == LOWERED
    symbols = {symbol.name for symbol in cubin.read_symbols(result.code)}
    assert symbols.issuperset(LOWERED.values())


@pytest.mark.some(1)
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), id="none"),
        pytest.param(("-lineinfo",), id="lineinfo", marks=pytest.mark.slow),
        pytest.param(("-rdc=true",), id="rdc"),
    ],
)
def test_name_expressions_do_not_change_the_machine_code(flags, toolchain):
    # `reads` takes addresses from the table to which a marker would add an entry.
    source = NAMES + "__global__ void reads(float* p) { *p = coefficients[1] + ns::counter++; }\n"
    by_hand = source + "template __global__ void f<float>(float*, int);\n"

    named = compiled(make_unit(source, names=("f<float>", "plain"), flags=flags), toolchain)

    plain = compiled(make_unit(by_hand, flags=flags), toolchain)
    assert code_of_functions(named.code) == code_of_functions(plain.code) != {}
    assert b"rtcompile_" not in named.code
    assert named.notes == ()


def test_name_expressions_work_where_debug_information_keeps_the_markers(toolchain):
    result = compiled(make_unit(NAMES, names=("f<float>",), flags=("-G",)), toolchain)

    assert result.lowered_names["f<float>"] == "_Z1fIfEvPT_i"
    assert "rtcompile_" in result.notes[0]


@pytest.mark.some(1)
@pytest.mark.parametrize("wrong", ["nope<int>", "f<nope>", "f", "3+", "plain(", "coefficients[2]+"])
def test_a_wrong_name_expression_is_named_in_the_error(wrong, toolchain):
    failure = failure_of(make_unit(NAMES, names=("plain", wrong), target="ptx"), toolchain)

    assert failure.kind == "error"
    assert "__nv_name_map(" in failure.log
    assert wrong in failure.log


def test_the_trace_names_every_header_that_was_read(toolchain, tmp_path):
    folder = tmp_path / "a b$c#d"
    folder.mkdir()
    (folder / "inner.h").write_text("#define INNER 1\n")
    (folder / "outer.h").write_text('#if __CUDA_ARCH__ == 900\n#include "inner.h"\n#endif\n')
    source = f'#include "outer.h"\n#include <vector>\nint x = INNER;\n{KERNEL}'

    result = compiled(make_unit(source, flags=(f"-I{folder}",), names=("k",)), toolchain)
    assert {str(folder / "outer.h"), str(folder / "inner.h")} <= set(result.trace)
    assert any(path.endswith("/vector") for path in result.trace)
    assert not any(path.endswith(".cu") for path in result.trace)


@pytest.mark.some(1)
@pytest.mark.parametrize("name", ['q"uo\\te.cu', "kernel.cu", "a b/k.cu", "no_suffix", "ä.cu"])
def test_messages_and_file_macros_contain_the_given_name(name, toolchain):
    source = f"constexpr const char* file = __FILE__;\nint n = {KERNEL}"
    assert f"{name}(2): error" in failure_of(make_unit(source, name=name), toolchain).log


def test_messages_contain_no_scratch_files(toolchain):
    failure = failure_of(
        make_unit('__global__ void k() { asm volatile("wrong %r0;"); }'), toolchain
    )
    assert "ptxas kernel.ptx, line" in failure.log
    assert "tmp" not in failure.log


def test_warnings_of_all_passes_are_in_the_log(toolchain):
    source = '#warning "mine"\n__global__ void k() { int unused; }\n'

    result = compiled(make_unit(source, names=("k",), flags=("-Xptxas=-v",)), toolchain)

    for text in ("mine", "was declared but never referenced", "ptxas info"):
        assert text in result.log


def test_an_nvcc_that_dies_without_output_is_reported(toolchain, tmp_path):
    silent = tmp_path / "nvcc"
    silent.write_text("#!/bin/sh\nkill -9 $$\n")
    silent.chmod(0o755)
    found = toolchain.require_nvcc()._replace(path=str(silent))

    failure = failure_of(make_unit(), toolchain._replace(nvcc=found))

    assert failure.log.splitlines()[0] == "The compiler died due to signal 9."


@pytest.mark.parametrize(
    ("limits", "kind"),
    [(Limits(timeout=0.05), "timeout"), (Limits(timeout=60, memory=1 << 20), "memory")],
    ids=["time", "memory"],
)
def test_nvcc_is_killed_at_its_limits(limits, kind, toolchain):
    failure = failure_of(make_unit(ENDLESS), toolchain, limits)

    assert failure.kind == kind


def test_without_a_host_compiler_there_is_no_nvcc(toolchain):
    crippled = toolchain._replace(host_compiler=None, missing={"host_compiler": "install g++"})

    with pytest.raises(ToolkitNotFound, match="install g\\+\\+"):
        nvcc.compile(make_unit(), crippled, limits=Limits())


def test_the_nvcc_of_pip_wheels_compiles(cuda13_prefix):
    found = find({"PATH": "/usr/bin:/bin"}, [str(cuda13_prefix)], usual_roots=())
    assert found.nvcc.path.startswith(str(cuda13_prefix))

    result = compiled(make_unit(NAMES, names=("f<float>",)), found)

    assert result.lowered_names["f<float>"] == "_Z1fIfEvPT_i"
    assert all("cuda" not in path or str(cuda13_prefix) in path for path in result.trace)
    # Another folder or machine has these headers at the same places of its search path.
    assert not [path for path in result.trace if "/bin/../" in path]


def test_a_driver_loads_code_of_its_major_version():
    for version, driver in (((12, 9), 12090), ((12, 9), 12020), ((12, 4), 13000), ((13, 0), 13000)):
        assert plan.driver_problem(version, driver) == ""
    assert plan.driver_problem((13, 0), 12090)


def test_no_name_expression_changes_the_numbers_of_the_lines_after_it():
    text = nvcc.Markers("", ["\nk<int>\n", "z"]).text()
    assert "\n k<int>\n" in text
    assert text.count('#line 3 "__nv_name_map"') == 3
    log = "__nv_name_map(9): error: expected a type\n  k\n  ^\n"  # outside the expressions
    assert nvcc.Markers("", ["k<int>"]).named_in(log) == log
