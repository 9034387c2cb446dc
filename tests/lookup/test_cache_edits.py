"""After edits of a nested or a pre-included header, a real compiler's code has the new value. `tests/frontends/test_doors.py` makes others."""

import os
import shutil
from pathlib import Path

import pytest

import rtcompile
from tests.processes import forget_caches

pytestmark = pytest.mark.needs_compiler

SOURCE = """
#include "value.h"
extern "C" __constant__ int value = VALUE;
extern "C" __global__ void k(int* out) { *out = value; }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "second/value.h").write_text('#include "nested.h"\n#define VALUE NESTED\n')
    (tmp_path / "second/nested.h").write_text("#define NESTED 1001\n")
    return tmp_path


def build(
    folder: Path, source: str = SOURCE, *options: str, backend: str = "auto"
) -> rtcompile.ObjectCode:
    """Build to PTX as a new process would; the PTX contains the value."""
    forget_caches()
    options = (*[f"-I{folder / name}" for name in ("first", "second")], *options)
    return rtcompile.compile(source, options=options, arch="sm_80", target="ptx", backend=backend)


def value_of(obj: rtcompile.ObjectCode) -> int:
    _, _, initial = obj.code.decode().partition("value = ")
    return int(initial.split(";")[0])


def test_an_edit_is_a_miss_a_revert_and_a_touch_are_hits_and_a_removal_is_an_error(folder):
    build(folder)
    # "nested.h" is found beside value.h, before any -I.
    (folder / "first/nested.h").write_text("#define NESTED 1005\n")
    assert value_of(build(folder)) == 1001
    (folder / "second/nested.h").write_text("#define NESTED 1002\n")
    assert value_of(build(folder)) == 1002
    (folder / "second/nested.h").write_text("#define NESTED 1001\n")
    again = build(folder)
    assert (value_of(again), again.build.hit) == (1001, "disk")
    os.utime(folder / "second/nested.h")
    assert build(folder).build.hit == "disk"
    for name in ("first", "second"):
        (folder / name / "nested.h").unlink()
    with pytest.raises(rtcompile.CompileError, match=r"nested\.h"):
        build(folder)


def a_copy(first: Path, second: Path) -> None:
    shutil.copyfile(first, second)
    os.utime(second, (1.0e9, 1.0e9))  # GCC takes a copy of the same second for the same file


ONCE = "#pragma once\n#ifdef VALUE\n#undef VALUE\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n"
TWICE = SOURCE.replace('"value.h"', '"once.h"\n#include "again.h"')
COPY, HARD_LINK = (a_copy, 2), (os.link, 1)
LINK = (lambda first, second: second.symlink_to(first), 1)


@pytest.mark.parametrize(
    ("backend", "states"),
    [
        ("nvrtc", (COPY, LINK, COPY, HARD_LINK, COPY)),
        pytest.param("nvcc", (COPY, HARD_LINK, COPY, LINK), marks=pytest.mark.needs_nvcc),
    ],
)
@pytest.mark.takes_seconds
def test_a_copy_of_a_header_that_becomes_a_link_or_a_link_that_becomes_a_copy_is_noticed(
    folder, backend, states
):
    """``#pragma once`` reads a file once, under whatever path, and a copy of it again."""
    once = folder / "first/once.h"
    once.write_text(ONCE)
    for put, value in states:
        (folder / "second/again.h").unlink(missing_ok=True)
        put(once, folder / "second/again.h")
        made, again = (build(folder, TWICE, backend=backend) for _ in range(2))
        assert (value_of(made), value_of(again), again.build.hit) == (value, value, "disk")


def test_an_error_of_two_copies_ends_when_one_becomes_a_link(folder):
    (folder / "first/once.h").write_text("#pragma once\nstruct S {};\n#define VALUE 3\n")
    a_copy(folder / "first/once.h", folder / "second/again.h")
    for _ in range(2):
        with pytest.raises(rtcompile.CompileError, match="has already been defined"):
            build(folder, TWICE)
    (folder / "second/again.h").unlink()
    (folder / "second/again.h").symlink_to("../first/once.h")
    assert value_of(build(folder, TWICE)) == 3


def test_a_moved_project_is_a_hit(folder, tmp_path):
    build(folder)
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("first", "second"):
        (folder / name).rename(moved / name)
    assert build(moved).build.hit == "disk"


def test_pre_included_headers_of_one_name_are_watched_and_distinguished(folder):
    source = SOURCE.replace('#include "value.h"', "")
    for number in (1, 3):
        for name in ("first", "second"):
            (folder / name / "pre.h").write_text(f"#define VALUE {number}{name == 'first':d}\n")
        for name in ("first", "second"):
            found = value_of(build(folder, source, f"-include={folder / name}/pre.h"))
            assert found == 10 * number + (name == "first")
