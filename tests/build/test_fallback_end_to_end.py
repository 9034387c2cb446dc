"""NVCC builds what NVRTC cannot, with a logged reason; sources that neither compiles are not tried twice."""

import logging
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

import rtcompile
from rtcompile import cubin, toolkit
from rtcompile.compilers import nvrtc
from tests.processes import forget_caches
from tests.tables import from_table

pytestmark = pytest.mark.needs_nvcc

HOST = """#include <vector>
template <class T> __global__ void fill(T* p, T x) { p[threadIdx.x] = x; }
template __global__ void fill(float*, float);
__constant__ float table[4];
std::vector<float> defaults() { return {1, 2, 3, 4}; }
"""
TYPO = 'extern "C" __global__ void k(float* p) { p[treadIdx.x] = 1; }'
PLAIN = """extern "C" __global__ void k(float* p, int n) {
  float s[8] = {};
  for (int i = 0; i < n; i++) s[i % 8] += p[i] * p[i + 1];
  p[threadIdx.x] = s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}"""


def compile(source=HOST, *, arch="sm_90a", **arguments):
    return rtcompile.compile(source, arch=arch, **arguments)


def test_nvcc_builds_what_nvrtc_cannot_and_the_log_has_the_reason(runs, caplog):
    caplog.set_level(logging.INFO, "rtcompile")

    names = ["fill<float>", "fill<int>", "&table"]
    code = compile(name_expressions=names)
    forget_caches()
    again = compile(name_expressions=names)

    assert runs == ["nvrtc", "nvcc"]
    assert (again.code, again.build.backend, again.build.hit) == (code.code, "nvcc", "disk")
    assert any(header.path.endswith("/vector") for header in code.build.headers)
    assert code.build.backend == "nvcc"
    assert "<vector>" in code.build.why
    toolchain = toolkit.current()
    both = toolchain.require_nvcc().version_pair[0], toolchain.require_nvrtc().version_pair[0]
    assert ("is of another CUDA than NVRTC" in code.build.why) == (both[0] != both[1])
    assert [r for r in caplog.messages if "nvcc" in r and "<vector>" in r]
    assert code.lowered_names["fill<int>"] == "_Z4fillIiEvPT_S0_"
    assert {*cubin.kernel_symbols(code.code)} == {
        code.lowered_names["fill<float>"],
        code.lowered_names["fill<int>"],
    }


def test_a_users_mistake_shows_only_nvrtcs_error(runs):
    with pytest.raises(rtcompile.CompileError, match="treadIdx") as error:
        compile(TYPO)

    assert runs == ["nvrtc", "nvrtc"]  # the source, and the change that the hint names
    assert error.value.backend == "nvrtc"
    assert str(error.value).count('identifier "treadIdx" is undefined') == 1


def test_a_source_that_neither_compiler_builds_shows_both_errors(runs):
    texts = []
    for _ in range(2):  # from the compilers, then from the negative cache of the next process
        with pytest.raises(rtcompile.CompileError) as error:
            compile(HOST + TYPO)
        forget_caches()
        texts.append(
            [str(error.value), "".join(t for _, t in rtcompile.messages.render(error.value))]
        )
        assert re.search(r"vector[\s\S]*treadIdx", error.value.log)
        assert (error.value.backend, len(error.value.diagnostics)) == ("nvcc", 1)

    assert runs == ["nvrtc", "nvcc"]
    assert "Cached" in texts[1][0]
    for text in texts[0] + texts[1]:
        assert re.search(r'source file "vector"[\s\S]*NVCC was tried next[\s\S]*treadIdx', text)
        assert text.count("p[treadIdx.x]") == text.count("#include <vector>") == 1


def test_each_compiler_s_log_begins_on_its_own_line(monkeypatch):
    original = nvrtc.compile

    def without_newline(*given, **more):
        outcome = original(*given, **more)
        return outcome._replace(log=outcome.log.rstrip())

    monkeypatch.setattr(nvrtc, "compile", without_newline)
    with pytest.raises(rtcompile.CompileError) as error:
        compile(HOST + TYPO)
    assert re.search(r'^\S+\(\d+\): error: identifier "treadIdx"', error.value.log, re.MULTILINE)


UNMARKED = """#include <vector>
constexpr int constant(int x) { return x; }
int twice(int x) { return 2 * x; }
static int table[2] = {1, 2};
std::vector<int> host() { return {twice(2)}; }
"""
KERNEL = 'extern "C" __global__ void k(int* p) { *p = EXPRESSION; }'


def test_constexpr_functions_stay_device_code_for_nvcc(runs):
    code = compile(UNMARKED + KERNEL.replace("EXPRESSION", "constant(*p)"))

    assert (code.build.backend, set(runs)) == ("nvcc", {"nvrtc", "nvcc"})
    assert "--expt-relaxed-constexpr added" in code.build.why


@pytest.mark.parametrize("backend", ["auto", "nvcc"])
@pytest.mark.parametrize(
    ("used", "message", "hint"),
    [
        ("twice(1)", "calling a __host__ function", "Mark it __device__ or __host__ __device__"),
        ("table[1]", '"table" is undefined in device code', "Mark it __device__, __constant__"),
    ],
)
def test_an_unmarked_name_is_the_hosts_for_nvcc_and_the_hint_says_how_to_mark_it(
    used, message, hint, backend
):
    with pytest.raises(rtcompile.CompileError, match=message) as error:
        compile(UNMARKED + KERNEL.replace("EXPRESSION", used), backend=backend)
    assert error.value.backend == "nvcc"
    assert hint in re.sub(r"\s+", " ", str(error.value))


@pytest.mark.parametrize(
    ("given", "variable"),
    [({"fallback": "never"}, ""), ({"backend": "nvrtc"}, ""), ({}, "never"), ({}, "always")],
    ids=["argument", "backend", "variable", "forced by a variable"],
)
def test_fallback_can_be_forbidden_or_forced(given, variable, runs, monkeypatch):
    if variable:
        monkeypatch.setenv("RTCOMPILE_FALLBACK", variable)
    if variable == "always":
        assert compile().build.backend == "nvcc"
        assert runs == ["nvcc"]
        return
    with pytest.raises(rtcompile.CompileError, match="vector"):
        compile(**given)
    assert runs == ["nvrtc"]


@pytest.mark.parametrize(
    ("backend", "fallback"), [("nvcc", "never"), ("nvrtc", "always")], ids=["nvcc", "nvrtc"]
)
def test_a_backend_is_not_overridden_in_silence(backend, fallback, runs, monkeypatch):
    message = f"backend='{backend}' and fallback='{fallback}' contradict"
    request = rtcompile.CompileRequest(PLAIN, arch="sm_90a", backend=backend)
    with pytest.raises(rtcompile.InvalidRequest, match=message):
        compile(PLAIN, backend=backend, fallback=fallback)
    with pytest.raises(rtcompile.InvalidRequest, match=message):
        rtcompile.compile_many([request], fallback=fallback)
    monkeypatch.setenv("RTCOMPILE_FALLBACK", fallback)

    assert compile(PLAIN, backend=backend).build.backend == backend
    assert runs == [backend]


def test_a_fatbin_is_not_made_with_nvcc_where_nvrtc_is_requested():
    with pytest.raises(rtcompile.InvalidRequest, match="backend='nvrtc' makes no fatbin"):
        rtcompile.CompileRequest(PLAIN, backend="nvrtc", target="fatbin")


@pytest.mark.parametrize("part", ["nvcc", "host_compiler"])
def test_without_nvcc_the_error_is_nvrtcs_with_an_installation_hint(part, monkeypatch):

    crippled = toolkit.current()._replace(
        **{part: None}, missing={part: f"no {part}; pip install something"}
    )
    monkeypatch.setattr(toolkit, "current", lambda *_: crippled)

    with pytest.raises(rtcompile.CompileError) as error:
        compile()

    assert re.search(r'open source file "vector".*pip install something', str(error.value), re.S)


@from_table
def test_an_error_that_a_flag_fixes_does_not_need_nvcc(source, flag, runs):
    code = compile(source)

    assert [name for name in runs if name != "nvjitlink"] == ["nvrtc", "nvrtc"]
    assert (code.build.backend, flag in code.build.why) == ("nvrtc", True)


def test_a_device_runtime_function_in_a_header_gets_its_include(tmp_path, runs):
    text = "__device__ inline void wait() { cudaGridDependencySynchronize(); }"
    (tmp_path / "launch.cuh").write_text(text)
    source = '#include "launch.cuh"\nextern "C" __global__ void k(int* p) { wait(); *p = 1; }'
    code = compile(source, options=[f"-I{tmp_path}"])
    assert runs == ["nvrtc", "nvrtc"]
    assert "-include=cuda_device_runtime_api.h added" in code.build.why


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("-G",), id="-G"),
        pytest.param(
            ("-lineinfo", "--maxrregcount=32", "-use_fast_math", "-std=c++20", "-Xptxas", "-O1"),
            id="several",
        ),
        pytest.param(
            ("-maxrregcount", "128", "-DX=1"), id="-maxrregcount wide", marks=pytest.mark.slow
        ),
    ],
)
def test_options_have_the_same_effect_in_both_compilers(options):
    codes = [compile(PLAIN, options=options, backend=b) for b in ("nvrtc", "nvcc")]

    assert [code.build.backend for code in codes] == ["nvrtc", "nvcc"]
    first, second = (
        (
            b".debug_info" in code.code,
            b".debug_line" in code.code,
            [(k.registers <= 32, k.parameters) for k in code.report().kernels],
        )
        for code in codes
    )
    assert first == second
    assert first[:2] == ("-G" in options, bool({"-G", "-lineinfo"} & {*options}))


# --- several decisions at once --------------------------------------------------------------------------

LAUNCH = "__global__ void c() {} __global__ void k() { c<<<1, 1>>>(); }"


@pytest.mark.parametrize(
    "source",
    [
        pytest.param("#include <vector>\n" + LAUNCH, id="NVRTC stopped at the header"),
        pytest.param(LAUNCH + "\n__host__ void f() {}", id="NVRTC reported both"),
    ],
)
def test_a_device_launch_in_a_source_for_nvcc_is_compiled_relocatably_and_linked(source, runs):
    code = compile(source)

    assert (code.build.backend, runs[0]) == ("nvcc", "nvrtc")
    assert "-rdc=true added" in code.build.why
    assert {*cubin.kernel_symbols(code.code)} >= {"_Z1cv", "_Z1kv"}
    assert compile(source).build.hit == "memory"


def test_the_options_that_several_errors_need_add_up(runs):
    source = (
        "__global__ void c() {} __global__ void k(long* p) {"
        " p[0] = (__int128)p[1] * p[2] >> 64; c<<<1, 1>>>(); }"
    )
    code = compile(source)

    assert set(runs) == {"nvrtc", "nvjitlink"}
    assert "--device-int128" in code.build.why
    assert "-rdc=true" in code.build.why


def test_a_standard_that_a_header_rejects_is_a_final_error():
    from rtcompile.messages.available import Declared
    from rtcompile.messages.fallback import decide

    log = (
        '/x/cub/config.cuh(10): error: #error directive: "CUB requires at least C++17. Define …"\n\n'
        "/x/cub/device/y.cuh(7): error: explicitly marked as a __host__ function is not allowed in"
        " JIT mode\n\n"
    )
    decision = decide(log, declared=Declared(toolkit.current()))

    assert (decision.action, "-std" in decision.reason) == ("stop", True)
    for names_none in ("requires a host", "requires C++17 and is not supported with NVRTC"):
        other = log.replace("requires at least C++17", names_none)
        assert decide(other, declared=Declared(toolkit.current())).action == "nvcc", names_none


@pytest.mark.parametrize(
    "condition",
    [
        pytest.param('#if __cplusplus < 202002L\n#error "mine needs C++20"\n#endif', id="#error"),
        pytest.param('static_assert(__cplusplus >= 202002L, "C++20 is needed");', id="assertion"),
    ],
)
def test_a_header_that_needs_a_newer_standard_is_compiled_once_with_a_hint(
    condition, runs, tmp_path
):
    (tmp_path / "mine.h").write_text(f"{condition}\n__host__ void f() {{}}\n#include <vector>\n")
    with pytest.raises(rtcompile.CompileError, match=r"hint: .*Use -std=c\+\+20\.") as error:
        compile('#include "mine.h"\n__global__ void k() {}', options=(f"-I{tmp_path}",))
    assert (runs, error.value.backend) == (["nvrtc"], "nvrtc")


# --- what is remembered ------------------------------------------------------------------------


@pytest.mark.parametrize("on_disk", [True, False])
def test_of_many_threads_one_compiles_what_no_compiler_accepts(on_disk, runs, monkeypatch):
    if not on_disk:
        monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")

    def failed(_):
        with pytest.raises(rtcompile.CompileError, match="treadIdx") as error:
            compile(TYPO)
        return error.value.diagnostics

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(failed, range(8)))
    assert found == [found[0]] * 8
    assert runs == ["nvrtc", "nvrtc"]  # the source, and the change that the hint names


def test_the_failed_compiler_is_skipped_after_the_code_was_evicted(runs):
    # A process that must build it again skips the compiler that cannot.
    compile(target="ptx")
    shutil.rmtree(os.path.join(os.environ["RTCOMPILE_CACHE_DIR"], "objects"))
    forget_caches()
    code = compile(target="ptx")

    assert runs == ["nvrtc", "nvcc", "nvcc"]
    assert (code.build.hit, "<vector>" in code.build.why) == (None, True)


def test_a_failed_compiler_is_skipped_with_the_flags_that_its_errors_required(runs):
    # NVCC cannot tell by its own errors that the include is missing.
    source = """__global__ void g(int* p) { std::optional<int> b(5); *p = *b; }
    void run(int* p) { g<<<1, 1>>>(p); }"""
    first = compile(source)
    shutil.rmtree(os.path.join(os.environ["RTCOMPILE_CACHE_DIR"], "objects"))
    forget_caches()
    del runs[:]
    again = compile(source)

    assert {*runs} == {"nvcc"}
    assert again.code == first.code
    assert "-include=optional added" in first.build.why
    reasons = [code.build.why.partition("; ")[2] for code in (first, again)]
    assert reasons[0] == reasons[1]


@pytest.mark.parametrize(
    ("source", "backend", "kept"),
    [
        (PLAIN, "nvcc", ""),
        (PLAIN, "auto", ""),
        (HOST, "auto", "<vector>"),
        (LAUNCH, "auto", "-rdc"),
    ],
)
def test_a_hit_keeps_the_reason_for_nvcc_or_a_flag_and_not_the_one_for_the_miss(
    source, backend, kept
):
    first, again = compile(source, backend=backend), compile(source, backend=backend)
    forget_caches()
    later = compile(source, backend=backend)

    assert [each.build.hit for each in (first, again, later)] == [None, "memory", "disk"]
    missed, _, lasting = first.build.why.partition("; ")
    assert missed == "no build of this source with these options"
    assert kept in lasting
    assert {again.build.why, later.build.why} == {lasting}


def test_with_nvrtc_first_a_request_for_nvcc_takes_nvrtc_and_the_note_has_the_seconds_saved(runs):
    by_nvcc = compile(PLAIN, backend="nvcc")
    first = compile(PLAIN, backend="nvcc", fallback="nvrtc-first")
    forget_caches()
    again = compile(PLAIN, backend="nvcc", fallback="nvrtc-first")

    assert runs == ["nvcc", "nvrtc"]
    assert (first.build.backend, again.build.hit) == ("nvrtc", "disk")
    (note,) = first.build.notes
    saved, took = map(float, re.findall(r"saved (-?[\d.]+) s: NVCC took ([\d.]+) s", note)[0])
    assert took == pytest.approx(by_nvcc.build.compiled_in / 1e3, abs=0.02)
    assert saved == pytest.approx(took - first.build.compiled_in / 1e3, abs=0.02)
    assert compile(PLAIN, backend="nvcc").build.backend == "nvcc"  # without it, what was requested


@pytest.mark.some(3)
@pytest.mark.parametrize("fixups", [True, False])
@pytest.mark.parametrize(
    "source",
    [
        pytest.param(HOST, id="host header"),
        # A mistake for NVRTC by every rule: only the request for NVCC says that NVCC builds it.
        pytest.param(
            "#ifdef __CUDACC_RTC__\n#error mine\n#endif\n__global__ void k() {}", id="#error"
        ),
        pytest.param("#ifndef __NVCC__\nnonsense\n#endif\n__global__ void k() {}", id="mistake"),
    ],
)
def test_with_nvrtc_first_nvcc_builds_whatever_nvrtc_rejects(source, fixups, runs):
    for _ in range(2):
        request = rtcompile.CompileRequest(
            source, arch="sm_90", backend="nvcc", allow_fixups=fixups
        )
        (code,) = rtcompile.compile_many([request], fallback="nvrtc-first")
        forget_caches()

    assert runs == ["nvrtc", "nvcc"]
    assert (code.build.backend, code.build.hit) == ("nvcc", "disk")
    assert code.build.why


def test_with_nvrtc_first_what_both_reject_fails_without_a_compiler_the_next_time(runs):
    for _ in range(2):
        with pytest.raises(rtcompile.CompileError, match="treadIdx") as error:
            compile(TYPO, backend="nvcc", fallback="nvrtc-first")
        forget_caches()

    assert runs == ["nvrtc", "nvcc", "nvrtc"]  # at last the change that the hint names
    assert error.value.cached
