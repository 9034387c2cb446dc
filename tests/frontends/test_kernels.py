"""Tests of `RawModule` and `RawKernel` that need CuPy but no device."""

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest

cupy = pytest.importorskip("cupy")

import rtcompile  # noqa: E402
from rtcompile.frontends import raw_kernel  # noqa: E402
from tests.processes import build_of  # noqa: E402
from tests.tables import from_table  # noqa: E402

CODE = 'extern "C" __global__ void k(float* x) { x[threadIdx.x] *= 2; }'
TEMPLATE = "template <class T> __global__ void f(T* x) { *x += 1; }"


def test_a_kernel_takes_cupys_four_arguments_in_cupys_order():
    kernel = rtcompile.RawKernel(CODE, "k", ("-DN=1",), "nvcc")
    assert isinstance(kernel, cupy.RawKernel)
    assert (kernel.code, kernel.name, kernel.options, kernel.backend) == (
        CODE,
        "k",
        ("-DN=1",),
        "nvcc",
    )
    with pytest.raises(TypeError):
        rtcompile.RawKernel(CODE, "k", (), "nvrtc", False)


def test_a_module_accepts_only_keywords():
    assert isinstance(rtcompile.RawModule(code=CODE), cupy.RawModule)
    with pytest.raises(TypeError):
        rtcompile.RawModule(CODE)


@pytest.mark.parametrize("keyword", ["translate_cucomplex", "enable_cooperative_groups", "jitify"])
@pytest.mark.parametrize("value", [None, False, True])
def test_cupys_keywords_are_taken_without_a_warning(keyword, value):
    rtcompile.RawKernel(CODE, "k", **{keyword: value})
    rtcompile.RawModule(code=CODE, **{keyword: value})


@pytest.mark.needs_compiler
def test_nothing_is_compiled_before_the_first_use():
    kernel = rtcompile.RawKernel("this is no C++", "k")
    assert (kernel.code, kernel.name, kernel.__name__) == ("this is no C++", "k", "k")
    with pytest.raises(rtcompile.CompileError):
        rtcompile.RawKernel("this is no C++", "k", arch="sm_80").object_code  # noqa: B018


@pytest.mark.needs_compiler
def test_a_missing_header_under_jitify_is_an_error_that_names_it():
    from cupy.cuda.compiler import CompileException, JitifyException

    module = rtcompile.RawModule(code='#include "gone.h"\n' + CODE, jitify=True, arch="sm_80")
    with pytest.raises(JitifyException, match=r"gone\.h") as caught:
        module.object_code  # noqa: B018
    assert isinstance(caught.value, CompileException)
    assert caught.value.log
    assert caught.value.diagnostics


@pytest.mark.needs_compiler
def test_name_expressions_come_from_any_iterable():
    names = {"a": "f<int>", "b": "f<float>"}
    module = rtcompile.RawModule(code=TEMPLATE, name_expressions=names.values(), arch="sm_80")
    assert module.name_expressions == ("f<int>", "f<float>")
    assert set(module.object_code.lowered_names) == {"f<int>", "f<float>"}


@pytest.mark.needs_compiler
def test_under_jitify_the_working_directory_is_searched_last_and_in_the_key(tmp_path, monkeypatch):
    def value(jitify):
        code = '#include "models/k.cuh"\n' + CODE
        module = rtcompile.RawModule(code=code, jitify=jitify, arch="sm_80")
        (header,) = module.build.headers
        return header.path, module.build.hit

    for project in ("a", "b"):
        (tmp_path / project / "models").mkdir(parents=True)
        (tmp_path / project / "models/k.cuh").write_text(f"#define PROJECT_{project}\n")
        (tmp_path / project / "cuda_fp16.h").write_text("#error not last\n")
        monkeypatch.chdir(tmp_path / project)
        assert value(True) == (str(tmp_path / project / "models/k.cuh"), None)
        cupy.clear_memo()
        assert value(True) == (str(tmp_path / project / "models/k.cuh"), "memory")
    fp16 = rtcompile.RawModule(code="#include <cuda_fp16.h>\n" + CODE, jitify=True, arch="sm_80")
    assert fp16.object_code
    with pytest.raises(rtcompile.CompileError, match=r"models/k\.cuh"):
        value(None)


@pytest.mark.needs_compiler
@pytest.mark.parametrize("given", [{}, {"name_expressions": ["k"]}], ids=["kernel", "module"])
def test_the_classes_search_include_dirs_relative_to_the_working_directory(
    tmp_path, monkeypatch, given
):
    monkeypatch.chdir(tmp_path)
    (folder := tmp_path / "include").mkdir()
    (folder / "mine.h").write_text("")
    source = '#include "mine.h"\n' + CODE
    more = {"include_dirs": [Path("include")], "arch": "sm_80"}
    made = rtcompile.RawModule(code=source, **given, **more)
    made = made if given else rtcompile.RawKernel(source, "k", **more)

    assert made.build.headers[0].path == str(folder / "mine.h")
    assert pickle.loads(pickle.dumps(made)).options == made.options == ("-Iinclude",)


def test_auto_is_cupys_default_backend():
    auto = rtcompile.RawModule(code=CODE, backend="auto")
    assert auto.backend == "nvrtc"
    assert build_of(auto).arguments == build_of(rtcompile.RawModule(code=CODE)).arguments


def test_a_kernel_of_nvcc_cannot_forbid_nvcc_but_a_file_has_no_backend():
    with pytest.raises(rtcompile.InvalidRequest, match="backend='nvcc' and fallback='never'"):
        rtcompile.RawKernel(CODE, "k", backend="nvcc", fallback="never")
    assert rtcompile.RawModule(path="/somewhere/k.cubin", fallback="never").backend == "nvcc"


@pytest.mark.needs_compiler
def test_cucomplex_becomes_cupys_complex():
    code = (
        '#include <cuComplex.h>\nextern "C" __global__ void k(cuComplex* x) { *x = cuConjf(*x); }'
    )
    kernel = rtcompile.RawKernel(code, "k", translate_cucomplex=True, arch="sm_80")
    read = {header.relative for header in kernel.build.headers}
    assert "cupy/cuComplex_bridge.h" in read
    assert not any(name.endswith("cuComplex.h") for name in read)
    assert kernel.code == code


@pytest.mark.parametrize(
    "make",
    [
        lambda: rtcompile.RawKernel(
            CODE, "k", ("-DX",), enable_cooperative_groups=True, arch="sm_80"
        ),
        lambda: rtcompile.RawModule(code=TEMPLATE, name_expressions=["f<int>"], fallback="never"),
        lambda: rtcompile.RawModule(path="/somewhere/k.cubin"),
    ],
    ids=["kernel", "module", "file"],
)
@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_both_classes_pickle_and_copy_with_all_their_arguments(make, again):
    original = make()
    other = again(original)
    assert type(other) is type(original)
    assert build_of(other).arguments == build_of(original).arguments
    for name in ("code", "options", "backend", "file_path", "enable_cooperative_groups"):
        assert getattr(other, name) == getattr(original, name)


def test_a_subclass_pickles_as_itself():
    other = pickle.loads(pickle.dumps(Doubling(CODE, "k")))
    assert type(other) is Doubling


class Doubling(rtcompile.RawKernel):
    pass


@from_table
def test_arguments_that_cannot_describe_a_build_are_rejected_at_once(arguments, message):
    with pytest.raises(rtcompile.InvalidRequest, match=message):
        rtcompile.RawModule(**arguments)


@pytest.mark.parametrize("name", [None, 3, b"k"])
def test_the_name_of_a_kernel_must_be_a_str(name):
    with pytest.raises(rtcompile.InvalidRequest, match="name must be a str"):
        rtcompile.RawModule(code=CODE, arch="sm_80").get_function(name)


@pytest.mark.needs_compiler
def test_a_failing_source_is_dumped_if_cupys_variable_is_set(monkeypatch, capsys):
    monkeypatch.setenv("CUPY_DUMP_CUDA_SOURCE_ON_ERROR", "1")
    with pytest.raises(rtcompile.CompileError):
        rtcompile.RawKernel("int x = y;", "k", arch="sm_80").object_code  # noqa: B018
    assert "1 int x = y;" in capsys.readouterr().err


@pytest.mark.needs_compiler
def test_kernels_of_a_module_share_its_build():
    module = rtcompile.RawModule(code=CODE, arch="sm_80")
    kernel = raw_kernel.RawKernel.__new__(raw_kernel.RawKernel)
    kernel._bind(build_of(module), "k")
    assert kernel.object_code is module.object_code


@pytest.mark.needs_compiler
def test_a_kernel_reports_whether_it_is_cached(tmp_path, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path))
    kernel = rtcompile.RawKernel(CODE, "k", arch="sm_80")
    assert not kernel.is_cached()
    assert not list(tmp_path.glob("objects/*"))
    _ = kernel.object_code

    assert kernel.is_cached()
    assert rtcompile.RawModule(code=CODE, arch="sm_80").is_cached()
    assert not rtcompile.RawModule(code=CODE, arch="sm_86").is_cached()
    assert not rtcompile.RawModule(code=CODE, arch="sm_80", options=("-DX",)).is_cached()


@pytest.mark.needs_compiler
def test_recompile_compiles_what_is_cached_once(monkeypatch):
    first = rtcompile.RawKernel(CODE, "k", arch="sm_80").object_code

    again = rtcompile.RawKernel(CODE, "k", arch="sm_80", recompile=True)

    assert again.build.hit is None
    assert again.object_code.code == first.code
    cupy.clear_memo()
    assert rtcompile.RawKernel(CODE, "k", arch="sm_80").build.hit
    assert rtcompile.compile(CODE, arch="sm_80", recompile=True).build.hit is None
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    with pytest.raises(rtcompile.JitDisabled, match="recompile"):
        rtcompile.compile(CODE, arch="sm_80", recompile=True)


def test_a_file_that_is_not_there_is_not_cached(tmp_path):
    file = tmp_path / "k.ptx"
    module = rtcompile.RawModule(path=str(file))
    assert not module.is_cached()
    file.write_text(".version 8.0\n")
    assert module.is_cached()


# --- a build without the kernel that was asked for does not succeed silently ------------------------------

SCALE = "__global__ void scale(float* x) { *x *= 2; }"
SCALES = "template <class T> __global__ void scale(T* x) { *x *= 2; }"


@pytest.mark.needs_compiler
@from_table
def test_a_missing_kernel_raises_without_a_device(source, name, says):
    kernel = rtcompile.RawKernel(source, name, arch="sm_80", options=("-G",))
    for use in (lambda: kernel.object_code, lambda: kernel.build, lambda: kernel.save("k.cubin")):
        with pytest.raises(rtcompile.DriverError, match=f"has no kernel '{name}'") as failed:
            use()
        assert says in str(failed.value)


@pytest.mark.needs_compiler
def test_a_batch_reports_the_missing_kernel():
    good = rtcompile.RawKernel(f'extern "C" {SCALE}', "scale", arch="sm_80")
    bad = rtcompile.RawKernel(f'extern "C" {SCALE}', "other", arch="sm_80")
    for _ in range(2):  # compiled, and found
        code, error = rtcompile.compile_many([good, bad], progress=False, errors="return")
        assert code.kind == "cubin"
        assert isinstance(error, rtcompile.DriverError)
        futures = rtcompile.submit_many([good, bad])
        assert futures[0].result().kind == "cubin"
        for _ in range(2):
            assert isinstance(futures[1].exception(), rtcompile.DriverError)
            with pytest.raises(rtcompile.DriverError, match="has no kernel 'other'"):
                futures[1].result()
    with pytest.raises(rtcompile.BatchError, match="has no kernel 'other'"):
        rtcompile.compile_many([good, bad], progress=False)


@pytest.mark.needs_compiler
@pytest.mark.some
@pytest.mark.parametrize("options", [(), ("-rdc=true",), ("-G",), ("-lineinfo",)])
@pytest.mark.parametrize("arch", ["sm_75", "sm_90a", "sm_120"])
def test_a_kernel_is_found_whatever_the_options(options, arch):
    source = f'extern "C" {SCALE}'
    assert rtcompile.RawKernel(source, "scale", arch=arch, options=options).object_code is not None


def uses(source: str, **arguments: Any) -> list[Any]:
    request = rtcompile.CompileRequest(source, arch="sm_80", **arguments)
    return [
        lambda: rtcompile.compile(source, arch="sm_80", **arguments),
        lambda: rtcompile.compile_many([request], progress=False),
        lambda: rtcompile.submit_many([request])[0].result(),
        *([] if arguments else [lambda: rtcompile.RawModule(code=source, arch="sm_80").build]),
    ]


@pytest.mark.needs_compiler
@pytest.mark.parametrize("target", ["cubin", "ptx"])
def test_a_source_whose_kernels_are_missing_warns(target):
    arguments = {} if target == "cubin" else {"target": target}
    for use in uses(SCALES, **arguments) * 2:  # compiled, and found
        with pytest.warns(
            rtcompile.RtcompileWarning, match="no kernel: 'scale' is a template, and nothing"
        ):
            use()


@pytest.mark.needs_compiler
@from_table
def test_code_that_is_complete_does_not_warn(source, arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for use in uses(source, **arguments):
            use()
