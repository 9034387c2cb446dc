"""Tests of every row of the catalogue with real compilers' messages: it matches and explains the cause."""

import re
import shutil
import time
from pathlib import Path

import pytest

import rtcompile
from rtcompile.compilers import nvrtc
from rtcompile.cubin import check_code
from rtcompile.diagnostic import Diagnostic
from rtcompile.files.headers import SearchDir
from rtcompile.messages import catalogue
from rtcompile.messages.catalogue import MESSAGES
from rtcompile.messages.diagnostics import Attempts
from rtcompile.messages.facts import BuildContext
from rtcompile.request.units import Compiled, Limits, TranslationUnit
from rtcompile.request.values import Arch
from tests.processes import python, ran
from tests.provoked import (
    AS_REPORTED,
    BY_NVCC,
    BY_NVJITLINK,
    BY_NVRTC,
    EMPTY,
    MIXED_NVCC,
    PLAIN_NVJITLINK,
    SHARED_80000,
    Provoked,
    coverage,
)
from tests.provoked.bench import assert_explained
from tests.toolkits import needs_host_compiler


@pytest.mark.needs_compiler
@pytest.mark.parametrize(("row", "how"), BY_NVRTC)
def test_a_message_of_nvrtc_is_explained_by_its_row(row, how, bench):
    assert_explained(row, how, *bench.failure(how, "nvrtc"))


@pytest.mark.needs_compiler
@pytest.mark.skipif(not shutil.which("nvcc"), reason="no nvcc on PATH")
@pytest.mark.parametrize(("row", "how"), BY_NVCC)
def test_a_message_of_nvcc_is_explained_by_its_row(row, how, bench):
    assert_explained(row, how, *bench.failure(how, "nvcc"))


@pytest.mark.needs_compiler
@pytest.mark.parametrize(("row", "message", "hint", "given"), BY_NVJITLINK)
def test_a_message_of_nvjitlink_is_explained_by_its_row(
    row, message, hint, given, toolchain, tmp_path
):
    name, kind, text, option = given
    library = toolchain(name).nvjitlink
    (tmp_path / "input").write_text(text)
    given = library.path, kind, tmp_path / "input", option
    done = python(PLAIN_NVJITLINK, *given, check=True)
    context = BuildContext(backend="nvjitlink", versions=toolchain(name).versions)
    assert_explained(row, Provoked(message, (hint,)), done.stdout, context)


@pytest.mark.parametrize(("text", "row", "hint"), AS_REPORTED)
def test_a_reported_message_is_explained_by_its_row(text, row, hint):
    context = BuildContext(Arch(9, 0, "a"), capability=(8, 9), versions={"nvrtc": "12.9.86"})
    explained = catalogue.explain(text, context)
    assert explained is not None
    assert explained[0].id == row
    assert hint in explained[1]


@pytest.mark.needs_compiler
@needs_host_compiler
def test_wheels_of_nvcc_and_nvvm_that_do_not_match_are_explained(wheels, tmp_path):
    folder = wheels(MIXED_NVCC) / "nvidia" / "cu13"
    for program in (*folder.glob("bin/*"), *folder.glob("nvvm/bin/*")):
        program.chmod(0o755)
    (tmp_path / "kernel.cu").write_text(EMPTY)
    done = ran(folder / "bin" / "nvcc", "-arch=sm_80", "-cubin", "kernel.cu", cwd=tmp_path)
    message = "invalid option: --simt-only"
    assert_explained("nvcc-and-nvvm", Provoked(message, ("Pin them",)), done.stderr, BuildContext())


@pytest.mark.parametrize(
    "piece",
    ["/", "a/", "(", "'a", '"--', "/cute/", "x", " 9", "\n", "Value '", "nvcuda::wmma::fragment<",
     "calling a __host__ function", 'more than one operator "+" matches these operands'],
)  # fmt: skip
def test_a_hostile_message_delays_no_pattern(piece):
    """A pattern that backtracks would need minutes instead of milliseconds for one of these."""
    catalogue.explain(piece * 20_000)


@pytest.mark.parametrize(
    "piece",
    ["template <class T> ", "namespace a { ", "struct x ", "f(", "int i, ", "#define A ", "/*",
     "const ", "const a ", "*a", "a[", "f(a", "const f"],
)  # fmt: skip
def test_a_hostile_source_delays_no_hint(piece):
    """Hints search the source for the intended name in less than quadratic time."""
    context = BuildContext(source=piece * 10_000)
    for message in (
        'identifier "foo" is undefined',
        'kernel.cu: error: namespace "a" has no member "foo"',
        'kernel.cu: no instance of function template "f" matches the argument list',
        'too few arguments for class template "x"',
        "Error in parsing name expression for lowered name lookup",
    ):
        catalogue.explain(message, context)
    for message in (
        "static assertion failed",
        'expected a ")"',
        'expected a ";"',
        "expected a declaration",
        "return value type does not match the function type",
        'argument of type "const float *" is incompatible with parameter of type "float *"',
    ):
        text = "static_assert(f(a, b));\n"
        at = Diagnostic("error", message, "k.cu", 1, text.index("a, b") + 1, excerpt=text)
        own = f"void f(float* a) {{ {context.source}"
        for source in (own, f"#\n{own}", f"#\n{context.source}"):
            catalogue.explain(at, BuildContext(source=source))
    for message in (
        'identifier "f" is undefined',
        'no operator "*" matches these operands',
        'incomplete type "x" is not allowed',
        'object of abstract class type "x" is not allowed',
        'no default constructor exists for class "x"',
        '"f" is ambiguous',
        "expression must be a modifiable lvalue",
        "expression must have arithmetic or unscoped enum type",
        "out-of-order initializers are nonstandard in C++",
        "a nonstatic member reference must be relative to a specific object",
        "array of functions is not allowed",
    ):
        source = f"void f(float* a) {{ f(a, b); }}\n{context.source}"
        at = Diagnostic("error", message, "k.cu", 1, 20, excerpt=source.partition("\n")[0])
        attempts = Attempts(lambda *_: None, source, [at], 32)
        catalogue.explain(at, BuildContext(source=source, attempts=attempts))


def test_a_header_that_is_installed_is_not_called_missing():
    found, *_ = rtcompile.explain('fatal error: cannot open source file "vector_types.h"')

    folder = re.search(r"vector_types.h is in (\S+) here", found.hint)
    assert folder is not None, found.hint
    assert Path(folder[1], "vector_types.h").is_file()


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    ("source", "expression", "hint"),
    [
        ("void f(int a) {} __device__ void f(float* b) {}", "f", "a cast for one of several overloads"),
        ("void f(float* a) {}", "f(float*)", "Write its name without parameters"),
        ("int m;", "m", "& for a variable, as in '&m'"),
        ("float f(float x) { return x; }", "f", "is a __device__ function"),
    ],
)  # fmt: skip
def test_a_name_that_the_source_declares_is_not_called_undeclared(source, expression, hint):
    with pytest.raises(rtcompile.CompileError) as caught:
        rtcompile.compile(f"__device__ {source}", arch="sm_80", name_expressions=[expression])

    assert hint in caught.value.diagnostics[0].hint
    assert "declares no" not in str(caught.value)


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(
            "// ex2 in hardware\n__global__ void k(float* p) {\n"
            '  asm("ex2.f32 %0, %0;" : "+f"(*p));\n}\n',
            id="an instruction that ptxas rejects",
        ),
        pytest.param(
            "__device__ float f(float);\n__global__ void k(float* p) {\n  *p = f(*p);\n}\n",
            id="a call of a function that nothing defines",
        ),
    ],
)
def test_an_error_without_a_line_is_shown_in_the_statement_that_causes_it(source):
    with pytest.raises(rtcompile.CompileError) as caught:
        rtcompile.compile(source, arch="sm_80")

    first, line, *_ = str(caught.value).split("\n")
    assert first.startswith("kernel.cu:3: ")
    assert line == f"    3 | {source.splitlines()[2]}"


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    ("text", "not_said"),
    [
        ("for (float in = 0; in < n; ++in) x[0] = q;", "Python"),
        ("float lambda = 2; x[0] = n ? lambda : n; x[1] = q;", "Python"),
        ("int pass = 3, is = 4; if (n) pass = q; x[is] = pass;", "Python"),
        ("float m[1][1] = {{1}}; x[0] = m[0][0] + q;", "placeholder"),
        ("float v = float{q}; x[0] = v;", "placeholder"),
        ('asm("mov.u32 %0, $1;" : "=r"(n)); x[0] = q;', "placeholder"),
        ("float4 v = make_float4(1, 2, 3, 4), w = float4(v); x[0] = w.x + q;", "make_float4"),
        ("float v[2] = {1, 2, 3}; x[0] = make_float4(v[0], 0, 0, 0).x;", "make_float4"),
        ("x[n % 2] = x[0] ^ 2;", "`%`"),
        ("struct S { float v; __device__ void operator=(float a) { v = q; } };", "keyword"),
        ("#ifdef A\n  if (n) {\n#else\n  if (n > 1) {\n#endif\n    x[0] = q;\n  }", "Add a }"),
        ("x[0] = 2 N;", "stands for"),
        ("auto y = x; y(n) = 1;", "as in y *"),
        ("float y(1); x[0] = y[n];", "a function"),
        ("const int a = 1; if (a > n || n = a) x[0] = 1;", "is const"),
        ("atomicAdd(x, q 1);", "takes 2 arguments"),
        ("x[0] = y; }\n__device__ void f(float y) {", "declared below"),
        ("constexpr int a = n; x[a] = 1;", "known only at run time"),
        ("uchar4 v; surf2Dwrite(cudaSurfaceObject_t(n), v, 0, 0);", "Convert the arguments"),
        ('}\nstruct S {}\nextern "C" __global__\nvoid f() {', "`__global__` in line"),
        ("x[0] = __shfl_down_sync(0xffffffff, x[0]);", "0xffffffff, 0xffffffff"),
        ("x[0] = __shfl_sync(__activemask(), x[0]);", "0xffffffff"),
        ("x[0] = __ldg(&x[0], 1);", "no version"),
        ("x[0] = 1,5f;", "5.0f"),
        ("__shared__ Tile<float> t; t.f();", "Leave it out"),
    ],
)  # fmt: skip
def test_what_is_right_beside_an_error_is_not_called_its_cause(text, not_said):
    source = f"__global__ void k(float* x, int n) {{\n  {text}\n}}\n"
    with pytest.raises(rtcompile.CompileError) as caught:
        rtcompile.compile(source, arch="sm_80", options=["-DN=4"])

    assert not_said not in "".join(each.hint for each in caught.value.diagnostics)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("flaot", "float"), ("__syncthread", "__syncthreads"), ("foo", None), ("helper", None)],
)
def test_only_a_name_one_edit_away_is_suggested(written, meant):
    context = BuildContext(
        source="__device__ float floor_of, help;", device_names=lambda: ["floor", "__syncthreads"]
    )
    hint = catalogue.hint_for(f'identifier "{written}" is undefined', context)

    assert re.findall(r"Is `(\w+)` meant", hint) == ([meant] if meant else [])


def test_every_row_of_the_catalogue_is_provoked_or_reported():
    rows = {known.id for known in MESSAGES}
    assert len(rows) == len(MESSAGES)
    assert rows == set(coverage())


MMA_SM90 = """#include <cute/arch/mma_sm90_gmma.hpp>
using namespace cute;
__global__ void k(uint64_t* d, float* x) {
  SM90::GMMA::MMA_64x8x16_F32F16F16_SS<SM90::GMMA::Major::K, SM90::GMMA::Major::K>::fma(
      d[0], d[1], x[0], x[1], x[2], x[3]);
}"""


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    ("arch", "warned"),
    [
        ("sm_90", True),
        # tests/build/test_pipeline.py also compiles for both.
        pytest.param("sm_90a", False, marks=pytest.mark.slow),
    ],
)
def test_traps_instead_of_instructions_in_cute_are_found(arch, warned, toolchain):
    search = toolchain("12").search
    flags = (f"-arch={arch}", "-std=c++17", "-default-device", *(f"-I{d.path}" for d in search))
    unit = TranslationUnit(MMA_SM90, "kernel.cu", flags, (), "cubin", Arch.parse(arch))
    library = toolchain("12").require_nvrtc()
    built = nvrtc.compile(unit, library, limits=Limits(), search=search)
    assert isinstance(built, Compiled), built.log
    warnings = check_code(built.code, unit.arch)
    assert bool(warned) == any("sm_90a" in warning for warning in warnings)


@pytest.mark.needs_compiler
def test_too_much_static_shared_memory_that_old_nvrtc_passed_is_found(bench, tmp_path):
    how = Provoked("", (), SHARED_80000, toolkit="12.4", plain=True)
    log, _ = bench.failure(how, "nvrtc")
    assert log.strip() == ""
    (warning,) = check_code((tmp_path / "kernel.cubin").read_bytes(), Arch(8, 0))
    assert "_Z1kPi has 80000 bytes" in warning


_HEADERS = {
    "cuda.h": r"^\s+(CUDA_ERROR_\w+)\s*=",
    "driver_types.h": r"^\s+(cudaError[A-Z]\w+)\s*=",
    "nvrtc.h": r"^\s+(NVRTC_ERROR_\w+)\s*=",
    "nvJitLink.h": r"^\s+(NVJITLINK_ERROR_\w+)\s*,?",
}


@pytest.mark.parametrize("header", _HEADERS)
@pytest.mark.parametrize("cuda", ["12", "13"])
def test_every_error_that_a_header_of_cuda_lists_is_explained(header, cuda, toolchain):
    found = toolchain(cuda)
    folders = [Path(d.path) for d in found.search]
    if found.nvrtc is not None:  # the library's header is beside it
        roots = Path(found.nvrtc.path).parents
        folders += [folder for root in (roots[1], roots[2]) for folder in root.glob("**/include")]
    paths = [folder / header for folder in folders if (folder / header).is_file()]
    if not paths:
        pytest.skip(f"no {header} here")
    names = re.findall(_HEADERS[header], paths[0].read_text(), re.MULTILINE)
    assert len(names) > 5
    assert [name for name in names if not catalogue.hint_for(name)] == []


def test_nothing_is_found_in_other_bytes_than_a_cubin():
    assert check_code(b"\x7fELF and no more", Arch(8, 0)) == ()
    assert check_code(b"", Arch(8, 0)) == ()


MISFITS = {
    "template argument list": "array.hpp: a template argument list is not allowed in a declaration of a "
    "primary template",
    "header that is gone": 'array.hpp: cannot open source file "cuda/std/__tuple_dir/structured_bindings.h"',
}


@pytest.mark.parametrize("message", MISFITS.values(), ids=MISFITS)
def test_a_cutlass_passed_by_the_user_gets_advice_to_name_it_in_a_variable(message, tmp_path):
    (tmp_path / "cute").mkdir()
    versions = {"cutlass": "4.2.0", "cccl": "3.5.0"}
    own = BuildContext(search=(SearchDir("user0", str(tmp_path)),), versions=versions)
    hint = catalogue.hint_for(f"cute/container/{message}", own)
    assert f"CUTLASS of {tmp_path} and the CCCL headers 3.5.0" in hint
    assert f"Remove -I{tmp_path} and set RTCOMPILE_CUTLASS_PATH={tmp_path}" in hint
    hint = catalogue.hint_for(f"cute/container/{message}", BuildContext(versions=versions))
    assert "CUTLASS 4.2.0 and the CCCL headers 3.5.0" in hint
    assert "`pip install nvidia-cutlass`" in hint


def test_no_row_takes_most_of_the_time():
    words = (
        "instantiation of void cute::copy(const Tensor<Engine, Layout> &) [with Engine=cute::C<1>] "
    )
    seconds = {}
    for known in MESSAGES:
        found = []
        for _ in range(3):
            begin = time.thread_time()
            known.pattern.search(60 * words)
            found.append(time.thread_time() - begin)
        seconds[known.id] = min(found)
    slowest = max(seconds, key=lambda id_: seconds[id_])
    assert seconds[slowest] < 0.3 * sum(seconds.values()), slowest
