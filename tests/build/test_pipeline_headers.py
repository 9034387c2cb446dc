"""Tests of headers that are edited, shadowed, touched, moved or removed between two builds."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import rtcompile
from tests.processes import forget_caches
from tests.toolkits import needs_host_compiler

pytestmark = pytest.mark.needs_compiler


def value_of(folder: Path, *extra: str) -> tuple[int, str | None]:
    """Compile a kernel that stores the headers' value; return the value from the PTX, and the hit."""
    source = """
    #include "value.h"
    #if __has_include("extra.h")
    #include "extra.h"
    #endif
    #ifndef EXTRA
    #define EXTRA 0
    #endif
    extern "C" __global__ void k(int* out) { *out = VALUE + EXTRA; }
    """
    forget_caches()
    options = (f"-I{folder}/first", f"-I{folder}/second", *extra)
    code = rtcompile.compile(source, arch="sm_80", options=options, target="ptx")
    stored = [
        line for line in code.code.decode().split("\n") if "mov.b32" in line or "mov.u32" in line
    ]
    return int(stored[0].rpartition(",")[2].strip(" ;")), code.build.hit


@pytest.fixture
def headers(tmp_path) -> Path:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "second/value.h").write_text('#include "nested.h"\n#define VALUE NESTED\n')
    (tmp_path / "second/nested.h").write_text("#define NESTED 10\n")
    assert value_of(tmp_path) == (10, None)
    assert value_of(tmp_path) == (10, "disk")
    return tmp_path


def edit_within_one_tick(folder: Path) -> None:
    header = folder / "second/nested.h"
    before = header.stat()
    header.write_text("#define NESTED 20\n")
    os.utime(header, ns=(before.st_atime_ns, before.st_mtime_ns))


def retarget(folder: Path) -> None:
    (folder / "other.h").write_text("#define NESTED 20\n")
    (folder / "second/nested.h").unlink()
    (folder / "second/nested.h").symlink_to(folder / "other.h")


@pytest.mark.parametrize(
    ("edit", "value"),
    [
        pytest.param(
            lambda d: (d / "second/value.h").write_text("#define VALUE 20\n"), 20, id="edit"
        ),
        pytest.param(
            lambda d: (d / "second/nested.h").write_text("#define NESTED 20\n"), 20, id="nested"
        ),
        pytest.param(edit_within_one_tick, 20, id="within one mtime tick"),
        pytest.param(
            lambda d: (d / "first/value.h").write_text("#define VALUE 20\n"), 20, id="shadow"
        ),
        pytest.param(
            lambda d: (d / "second/extra.h").write_text("#define EXTRA 7\n"), 17, id="__has_include"
        ),
        pytest.param(retarget, 20, id="symlink"),
    ],
)
def test_an_edited_header_is_noticed(headers, edit, value):
    edit(headers)
    assert value_of(headers) == (value, None)
    assert value_of(headers) == (value, "disk")


@pytest.mark.parametrize("name", ["cuda_fp16.h", "vector"], ids=["a CUDA header", "a std header"])
@needs_host_compiler
def test_a_header_that_shadows_one_of_nvccs_is_noticed(tmp_path, name):
    source = """
    #include <vector>
    #include <cuda_fp16.h>
    #ifndef MINE
    #define MINE 10
    #endif
    extern "C" __global__ void k(int* out) { *out = MINE; }
    """
    arguments = {"options": (f"-I{tmp_path}",), "arch": "sm_80", "backend": "nvcc", "target": "ptx"}
    first = rtcompile.compile(source, **arguments)
    assert rtcompile.compile(source, **arguments).build.hit
    (tmp_path / name).write_text("#define MINE 20\n")
    second = rtcompile.compile(source, **arguments)
    assert second.build.hit is None
    assert second.code != first.code


def test_a_touched_header_is_read_again_and_hits(headers):
    os.utime(headers / "second/nested.h")
    assert value_of(headers) == (10, "disk")


def test_an_edit_and_its_revert_hit(headers):
    (headers / "second/nested.h").write_text("#define NESTED 20\n")
    assert value_of(headers) == (20, None)
    (headers / "second/nested.h").write_text("#define NESTED 10\n")
    assert value_of(headers) == (10, "disk")


def test_the_same_headers_in_another_folder_hit(headers, tmp_path_factory):
    moved = tmp_path_factory.mktemp("elsewhere") / "project"
    shutil.copytree(headers, moved)
    assert value_of(moved) == (10, "disk")


def test_a_deleted_header_is_an_error_that_names_it(headers):
    (headers / "second/nested.h").unlink()
    with pytest.raises(rtcompile.CompileError, match=r"nested\.h"):
        value_of(headers)


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param("/proc/self/root{own}", id="a process's"),
        pytest.param("//proc/../proc/./self/root{own}", id="spelled otherwise"),
        pytest.param("{here}/link/root{own}", id="by a link"),
        pytest.param("{here}/link/../self/root{own}", id="above a link"),
    ],
)
def test_folders_that_differ_between_processes_are_searched_each_time(
    tmp_path: Path, folder: str
) -> None:
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
def test_nvcc_searches_such_a_folder_each_time_too(tmp_path: Path) -> None:
    (tmp_path / "value.h").write_text("#define VALUE 1")
    source = "#include <value.h>\n__device__ int value = VALUE;"
    options = [f"-I/proc/self/root{tmp_path}"]
    for _ in range(2):
        code = rtcompile.compile(source, options=options, arch="sm_80", backend="nvcc")
        assert code.build.hit is None
