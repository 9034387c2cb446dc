"""Tests of `link=`: sources, objects and files become one program, and the key covers every input's contents."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import rtcompile
from rtcompile import CompileRequest, cubin, settings, toolkit
from rtcompile.build import pipeline
from rtcompile.lookup import environment
from rtcompile.lookup import find as lookup
from tests.processes import forget_caches
from tests.programs import CALLER, LIBRARY
from tests.tables import from_table

pytestmark = pytest.mark.needs_compiler


def compile(source=CALLER, *, arch="sm_90", **arguments):
    return rtcompile.compile(source, arch=arch, **arguments)


def kernels(code) -> list[str]:
    return cubin.kernel_symbols(code.code)


def functions(code) -> set[str]:
    return {s.name for s in cubin.read_symbols(code.code) if s.section == f".text.{s.name}"}


@pytest.mark.parametrize("options", [(), ("-rdc=true",), ("-dc",), ("-dlto",)], ids=str)
def test_a_source_in_link_is_compiled_and_linked(options):
    code = compile(link=[LIBRARY], options=options)

    assert kernels(code) == ["k"]
    assert ("_Z6helperf" in functions(code)) is ("-dlto" not in options)


def test_a_tuple_cannot_be_linked():
    with pytest.raises(rtcompile.InvalidRequest, match=r"link\[0\] is tuple"):
        compile(link=[("cubin", b"code")])


def test_a_library_of_lto_ir_is_inlined_into_every_kernel_that_links_it(runs):
    library = compile(LIBRARY, target="ltoir")

    programs = [compile(CALLER.replace("k(", f"k{i}("), link=[library]) for i in range(3)]

    assert runs == ["nvrtc"] + ["nvrtc", "nvjitlink"] * 3
    assert [functions(code) for code in programs] == [{"k0"}, {"k1"}, {"k2"}]


@pytest.mark.some(2)
@from_table
@pytest.mark.needs_nvcc
def test_files_of_nvcc_can_be_linked(suffix, flags, tmp_path, monkeypatch):
    program = toolkit.current().nvcc
    monkeypatch.chdir(tmp_path)
    (tmp_path / "library.cu").write_text(LIBRARY)
    output = "library.o" if suffix == ".a" else f"library{suffix}"
    subprocess.run(
        [program.path, *flags, "-rdc=true", "-arch=sm_90", "library.cu", "-o", output], check=True
    )
    if suffix == ".a":
        subprocess.run(["ar", "rcs", "library.a", "library.o"], check=True)

    assert kernels(compile(link=[tmp_path / f"library{suffix}"])) == ["k"]


def test_name_expressions_of_a_linked_program_are_in_it():
    source = CALLER + "\ntemplate <class T> __global__ void t(T* p) { *p = helper(*p); }"

    for options in ((), ("-dlto",)):
        code = compile(source, link=[LIBRARY], options=options, name_expressions=["t<float>"])

        assert code.lowered_names == {"t<float>": "_Z1tIfEvPT_"}
        assert "_Z1tIfEvPT_" in kernels(code)


@pytest.mark.some
@pytest.mark.parametrize("backend", ["nvrtc", pytest.param("nvcc", marks=pytest.mark.needs_nvcc)])
@pytest.mark.parametrize("option", ["-dc", "-rdc=true", "--device-c"])
def test_dynamic_parallelism_needs_only_the_option_of_cupys_users(backend, option):
    source = """__global__ void child(float* p) { p[threadIdx.x] = 1.0f; }
    extern "C" __global__ void k(float* p) { child<<<1, 32>>>(p); }"""

    code = compile(source, options=(option,), backend=backend)

    assert code.build.backend == backend
    assert {"k", "_Z5childPf"} <= set(kernels(code))


def test_two_files_of_relocatable_code_share_variables():
    first = "extern __device__ int counter;\n__global__ void k() { counter++; }"

    code = compile(first, link=["__device__ int counter = 7;"])

    symbols = {symbol.name: symbol for symbol in cubin.read_symbols(code.code)}
    assert symbols["counter"].section


def test_the_key_covers_the_contents_of_every_input(tmp_path, runs):
    path = tmp_path / "library.ltoir"
    builds = []
    for factor in ("3.0f", "5.0f", "3.0f"):
        path.write_bytes(compile(LIBRARY.replace("3.0f", factor), target="ltoir").code)
        forget_caches()
        builds.append(compile(link=[path]))

    assert [build.build.hit for build in builds] == [None, None, "disk"]
    assert builds[0].code == builds[2].code != builds[1].code


@from_table
def test_a_failed_link_names_the_inputs_and_caches_nothing(link, texts, runs):
    for _ in range(2):
        with pytest.raises(rtcompile.CompileError) as error:
            compile(link=link)
        for text in texts:
            assert text in str(error.value) + error.value.log

    failures = runs[len(runs) // 2 :]
    assert failures, "the second attempt must have tried again"


def test_cyclic_links_are_rejected():
    inner = CompileRequest(LIBRARY, link=(LIBRARY,))

    with pytest.raises(rtcompile.InvalidRequest, match="link="):
        compile(link=[inner])


def test_another_build_of_the_linker_links_again(runs, monkeypatch):

    compile(link=[LIBRARY])
    assert compile(link=[LIBRARY]).build.hit == "memory"
    found = toolkit.current()
    linker = found.nvjitlink
    if linker is None:
        pytest.skip("nvJitLink is needed")
    assert linker.build in compile(link=[LIBRARY]).build.compiler
    edited = found._replace(nvjitlink=linker._replace(build="nvJitLink 12.9.86 edited"))
    runs.clear()

    with monkeypatch.context() as replaced:
        replaced.setattr(toolkit, "current", lambda *_: edited)
        # The linker's file is one of the toolchain's, whose signature changes with it.
        replaced.setattr(environment.Environment, "signature", lambda *_: "another toolchain")
        environment.current().memory = None
        code = compile(link=[LIBRARY])
        unlinked = compile("__global__ void unlinked() {}")

    assert (code.build.hit, runs) == (None, ["nvrtc", "nvjitlink", "nvrtc"])
    assert unlinked.build.hit is None
    assert compile("__global__ void unlinked() {}").build.hit == "memory"  # it was not linked


def test_a_linked_program_without_headers_is_found_by_another_spelling():
    built = compile(options=("-rdc=true",), link=[LIBRARY])
    shutil.rmtree(Path(os.environ["RTCOMPILE_CACHE_DIR"], "index"))
    forget_caches()

    found = compile(options=("--relocatable-device-code=true",), link=[LIBRARY])

    assert (found.build.hit, found.code) == ("disk", built.code)


def test_a_linked_program_is_found_without_a_plan_until_one_of_its_files_changes(tmp_path, runs):
    """Edit a linked file, and the headers of the linked sources: each edit must be seen by a new process."""
    (tmp_path / "factor.cuh").write_text("#define FACTOR 3.0f\n")
    part, own = (
        tmp_path / "part.cu",
        CompileRequest(
            '#include "own.cuh"\n__device__ float own() { return OWN; }', options=(f"-I{tmp_path}",)
        ),
    )
    (tmp_path / "own.cuh").write_text("#define OWN 1.0f\n")
    part.write_text('#include "factor.cuh"\n' + LIBRARY.replace("3.0f", "FACTOR"))
    source = CALLER.replace("helper(p[threadIdx.x])", "helper(p[0]) + own()")
    source = "extern __device__ float own();\n" + source

    def again():
        forget_caches()
        runs.clear()
        request = CompileRequest(source, arch="sm_90", link=(str(part), own))
        found = pipeline.search(
            lookup.query_of(request, settings.Settings.from_environ()), "nothing"
        )
        return compile(source, link=(part, own)), found

    codes = [again()]
    for name, text in (("factor.cuh", "FACTOR 5.0f"), ("own.cuh", "OWN 7.0f")):
        (tmp_path / name).write_text(f"#define {text}\n")
        codes.append(again())
    part.write_text(part.read_text() + "__device__ int more;\n")
    codes.append(again())

    assert [(code.build.hit, found) for code, found in codes] == [(None, None)] * 4
    assert len({code.code for code, _ in codes}) == 4
    code, found = again()
    assert (code.build.hit, runs, found.code) == ("memory", [], code.code)
    names = {header.relative for header in found.build.headers}
    assert {"factor.cuh", "own.cuh"} <= names


def test_without_nvjitlink_the_error_names_it(monkeypatch):
    missing = {"nvjitlink": "nvJitLink not found"}
    crippled = toolkit.current()._replace(nvjitlink=None, missing=missing)
    monkeypatch.setattr(toolkit, "current", lambda *_: crippled)
    with pytest.raises(rtcompile.ToolkitNotFound, match="nvJitLink not found"):
        compile(CALLER + "// no linker", link=[LIBRARY])


@pytest.mark.parametrize("target", ["ltoir", "object", "fatbin"])
def test_a_link_makes_a_program(target):
    with pytest.raises(rtcompile.InvalidRequest, match=f"not target='{target}'"):
        CompileRequest(CALLER, target=target, link=[LIBRARY])
