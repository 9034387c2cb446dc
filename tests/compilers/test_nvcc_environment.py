"""A build by NVCC depends on its request, the files read and NVCC's build, and not on a shell's variables."""

import re

import pytest

import rtcompile
from rtcompile import toolkit
from rtcompile.build import planned
from rtcompile.request import units
from rtcompile.request.request import CompileRequest
from rtcompile.settings import Settings
from rtcompile.store import store
from tests.processes import forget_caches
from tests.tables import from_table

pytestmark = pytest.mark.needs_nvcc

SOURCE = """
#include "value.h"
#ifndef VALUE
#define VALUE 1
#endif
extern "C" __global__ void k(int* out) { *out = VALUE; }
"""


def build(
    source: str = SOURCE, *, backend: str = "nvcc", name: str = "kernel.cu", **arguments
) -> tuple[int, str | None]:
    """Compile a kernel that stores a number; return the number and where the code was found."""
    code = rtcompile.compile(
        source, arch="sm_80", target="ptx", backend=backend, name=name, **arguments
    )
    (stored,) = re.findall(rb"mov\.[bu]32\s+%r\d+, (\d+);", code.code)
    return int(stored), code.build.hit


# --- headers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["nvrtc", "nvcc"])
def test_a_header_beside_the_source_is_found_and_an_edit_noticed(backend, tmp_path):
    name = str(tmp_path / "a b,c/host.cu")
    header = tmp_path / "a b,c/value.h"
    header.parent.mkdir()
    header.write_text("#define VALUE 2\n")
    assert build(backend=backend, name=name) == (2, None)
    assert build(backend=backend, name=name) == (2, "memory")
    header.write_text("#define VALUE 3\n")
    assert build(backend=backend, name=name) == (3, None)


@pytest.mark.parametrize("backend", ["nvrtc", "nvcc"])
def test_a_directory_after_all_others_is_searched_last(backend, tmp_path):
    first, last = tmp_path / "first", tmp_path / "la st"
    first.mkdir()
    last.mkdir()
    for name in ("value.h", "cuda_fp16.h", "limits.h"):
        (last / name).write_text("#define VALUE 2\n")
    options = ("-idirafter", str(last), "-I", str(first))
    source = "#include <cuda_fp16.h>\n#ifdef VALUE\n#error not last\n#endif\n" + SOURCE
    assert build(source, backend=backend, options=options) == (2, None)
    assert build(source, backend=backend, options=options) == (2, "memory")
    (first / "value.h").write_text("#define VALUE 3\n")
    assert build(source, backend=backend, options=options) == (3, None)


# --- variables ---------------------------------------------------------------------------------

IGNORED = (
    "CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH", "INCLUDES", "SYSTEM_INCLUDES", "PTXAS_FLAGS",
    "NVVM_FLAGS", "CUDAFE_FLAGS", "LIBRARIES", "GCC_EXEC_PREFIX", "COMPILER_PATH", "LIBRARY_PATH",
    "LD_PRELOAD", "SECRET",
)  # fmt: skip


def test_variables_that_a_build_does_not_depend_on_reach_no_compiler(tmp_path, monkeypatch):
    (tmp_path / "vector").write_text("#error CPATH was searched\n")
    name = str(tmp_path / "no/such/folder/k.cu")  # a source that mentions other paths is cached
    for name in IGNORED:
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("INCLUDES", f"-I{tmp_path}")
    for name in ("PTXAS_FLAGS", "NVVM_FLAGS", "CUDAFE_FLAGS"):
        monkeypatch.setenv(name, "--no-such-option")
    source = '#line 7 "template.cu"\n#include <vector>\n' + SOURCE.replace("#include", "//")
    assert build(source, name=name) == (1, None)
    assert build(source, name=name) == (1, "memory")
    assert not set(IGNORED) & set(units.nvcc_environ(dict.fromkeys(IGNORED, "x")))


def test_the_flags_in_nvccs_variables_are_used_and_in_the_key(tmp_path, monkeypatch):
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
    (tmp_path / "second/value.h").write_text("#define VALUE 2\n")
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", f'-I "{tmp_path}/first"')
    monkeypatch.setenv("NVCC_APPEND_FLAGS", f"-I {tmp_path}/second -allow-unsupported-compiler")
    assert build() == (2, None)
    assert build() == (2, "disk")
    (tmp_path / "first/value.h").write_text("#define VALUE 3\n")
    assert build() == (3, None)
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DVALUE=4")
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "")
    (tmp_path / "value.h").write_text("")
    assert build(options=(f"-I{tmp_path}",)) == (4, None)


@from_table
def test_an_impossible_flag_in_a_variable_is_an_error_that_names_the_variable(
    flags, message, monkeypatch
):
    monkeypatch.setenv("NVCC_APPEND_FLAGS", flags)
    with pytest.raises(rtcompile.InvalidRequest, match=message) as error:
        build()
    # An option that is rejected because of the shell is named; its variable is not known then.
    assert "NVCC_APPEND_FLAGS" in str(error.value) or "shell" in message


def identity(*options: str) -> str:
    request = CompileRequest("x", options=options, arch="sm_80", backend="nvcc")
    return planned.plan(request, Settings.from_environ()).key_inputs.compilers["nvcc"]


def test_a_relative_directory_in_a_variable_depends_on_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-Iinclude")
    before = identity()
    monkeypatch.chdir(tmp_path)
    assert identity() != before


@pytest.mark.parametrize("where", ["options", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "PATH"])
def test_an_edit_of_a_wrapper_around_the_host_compiler_is_noticed(where, tmp_path, monkeypatch):
    wrapper = tmp_path / "g++"
    wrapper.write_text('#!/bin/sh\nexec /usr/bin/g++ "$@"\n')
    wrapper.chmod(0o755)
    options: tuple[str, ...] = ()
    if where == "options":
        options = ("-ccbin", str(wrapper))
    elif where == "PATH":
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    else:
        ccbin = str(wrapper) if where == "NVCC_CCBIN" else f"-ccbin {wrapper}"
        monkeypatch.setenv(where, ccbin)
    before = identity(*options)
    wrapper.write_text('#!/bin/sh\nexec /usr/bin/g++ -DX "$@"\n')
    assert identity(*options) != before


# --- other shells ------------------------------------------------------------------------------


@pytest.mark.some(1)
@pytest.mark.parametrize("lacks", ["nvcc", "host_compiler"])
@pytest.mark.parametrize("jit", ["0", "1"])
def test_a_build_by_nvcc_is_found_without_nvcc(lacks, jit, monkeypatch):
    source = "#include <vector>\n" + SOURCE.replace("#include", "//")
    assert build(source, backend="auto") == (1, None)
    without = toolkit.current()._replace(**{lacks: None})
    monkeypatch.setattr(toolkit, "current", lambda *_: without)
    monkeypatch.setenv("RTCOMPILE_JIT", jit)
    forget_caches()
    assert build(source, backend="auto") == (1, "disk")


def test_another_nvccs_code_serves_only_if_compiling_is_forbidden(monkeypatch):
    source = SOURCE.replace("#include", "//")
    build(source)
    found = toolkit.current()
    other = found._replace(nvcc=found.nvcc._replace(build="12.0 of another machine"))
    monkeypatch.setattr(toolkit, "current", lambda *_: other)
    request = CompileRequest(source, arch="sm_80", target="ptx", backend="nvcc")
    for jit in (False, True):
        settings = Settings.from_environ()._replace(jit=jit)
        inputs = planned.plan(request, settings).key_inputs
        assert (store.Store.open(settings).find(inputs) is not None) is not jit
