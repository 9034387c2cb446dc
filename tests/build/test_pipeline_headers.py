"""Tests of headers that shadow those of NVCC, and of folders that are others for another process."""

from __future__ import annotations

import pytest

import rtcompile
from tests.toolkits import needs_host_compiler

pytestmark = pytest.mark.needs_compiler


@pytest.mark.some(1)
@pytest.mark.parametrize("name", ["cuda_fp16.h", "vector"], ids=["a CUDA header", "a std header"])
@needs_host_compiler
def test_a_header_that_shadows_one_of_nvccs_is_noticed(tmp_path, name):
    source = f"#include <{name}>\n#ifndef MINE\n#define MINE 10\n#endif\n"
    source += 'extern "C" __global__ void k(int* out) { *out = MINE; }'
    arguments = {"options": (f"-I{tmp_path}",), "arch": "sm_80", "backend": "nvcc", "target": "ptx"}
    first = rtcompile.compile(source, **arguments)
    assert rtcompile.compile(source, **arguments).build.hit
    (tmp_path / name).write_text("#define MINE 20\n")
    second = rtcompile.compile(source, **arguments)
    assert second.build.hit is None
    assert second.code != first.code


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param("/proc/self/root{own}", id="a process's"),
        pytest.param("//proc/../proc/./self/root{own}", id="spelled otherwise"),
        pytest.param("{here}/link/root{own}", id="by a link"),
        pytest.param("{here}/link/../self/root{own}", id="above a link"),
    ],
)
def test_folders_that_differ_between_processes_are_searched_each_time(tmp_path, folder):
    (tmp_path / "link").symlink_to("step")
    (tmp_path / "step").symlink_to("/proc/self")
    own = tmp_path / "own"
    own.mkdir()
    source = "#include <value.h>\n__device__ int value = VALUE;"
    own_option = f"-I{own}"
    options = [f"-I{folder.format(own=own, here=tmp_path)}", own_option]
    codes = []
    for value in (1, 1, 2):
        (own / "value.h").write_text(f"#define VALUE {value}")
        codes.append(rtcompile.compile(source, options=options, arch="sm_80"))
    assert [code.build.hit for code in codes] == [None, None, None]
    assert codes[0].code == codes[1].code != codes[2].code

    codes = [rtcompile.compile(source, options=[own_option], arch="sm_80") for _ in range(2)]
    assert [code.build.hit for code in codes] == [None, "memory"]


@needs_host_compiler
@pytest.mark.filterwarnings("ignore:not cached")  # for a build that takes a second
def test_nvcc_searches_such_a_folder_each_time_too(tmp_path):
    (tmp_path / "value.h").write_text("#define VALUE 1")
    source = "#include <value.h>\n__device__ int value = VALUE;"
    options = [f"-I/proc/self/root{tmp_path}"]
    for _ in range(2):
        code = rtcompile.compile(source, options=options, arch="sm_80", backend="nvcc")
        assert code.build.hit is None
