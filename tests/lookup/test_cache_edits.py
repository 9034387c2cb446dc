"""After each kind of header edit, a real compiler's binary equals that of a fresh build."""

import os
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
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
    (tmp_path / "second/value.h").write_text('#include "nested.h"\n#define VALUE NESTED\n')
    (tmp_path / "second/nested.h").write_text("#define NESTED 1001\n")
    return tmp_path


def build(folder: Path, source: str = SOURCE, *options: str) -> rtcompile.ObjectCode:
    """Build to PTX as a new process would; the PTX contains the value."""
    forget_caches()
    directories = [f"-I{folder / name}" for name in ("first", "second")]
    return rtcompile.compile(source, options=[*directories, *options], arch="sm_80", target="ptx")


def value_of(obj: rtcompile.ObjectCode) -> int:
    _, _, initial = obj.code.decode().partition("value = ")
    return int(initial.split(";")[0])


def nested(folder: Path) -> int:
    (folder / "second/nested.h").write_text("#define NESTED 1002\n")
    return 1002


def shadow_of_a_nested_header_is_none(folder: Path) -> int:
    # "nested.h" is found beside value.h, before any -I.
    (folder / "first/nested.h").write_text("#define NESTED 1005\n")
    return 1001


def directory_is_now_a_link(folder: Path) -> int:
    (folder / "third/value.h").write_text("#define VALUE 1007\n")
    (folder / "second").rename(folder / "old")
    (folder / "second").symlink_to(folder / "third")
    return 1007


def twice_in_one_tick(folder: Path) -> int:
    for value in (1008, 1009):
        (folder / "second/nested.h").write_text(f"#define NESTED {value}\n")
        assert value_of(build(folder)) == value
    return 1009


@pytest.mark.parametrize(
    "edit", [nested, shadow_of_a_nested_header_is_none, directory_is_now_a_link, twice_in_one_tick]
)  # `tests/frontends/test_doors.py` makes others
def test_after_an_edit_the_binary_has_the_new_value(folder, edit):
    assert value_of(build(folder)) == 1001
    assert build(folder).build.hit == "disk"
    expected = edit(folder)
    assert value_of(build(folder)) == expected
    assert build(folder).build.hit == "disk"


def test_a_revert_and_a_touch_are_hits_and_a_removal_is_an_error(folder):
    build(folder)
    nested(folder)
    build(folder)
    (folder / "second/nested.h").write_text("#define NESTED 1001\n")
    again = build(folder)
    assert (value_of(again), again.build.hit) == (1001, "disk")
    os.utime(folder / "second/nested.h")
    assert build(folder).build.hit == "disk"
    (folder / "second/nested.h").unlink()
    with pytest.raises(rtcompile.CompileError, match=r"nested\.h"):
        build(folder)


def test_a_moved_project_is_a_hit(folder, tmp_path):
    build(folder)
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("first", "second"):
        (folder / name).rename(moved / name)
    assert build(moved).build.hit == "disk"


@pytest.mark.parametrize("macro", ["__TIME__", "__DATE__"])
def test_a_source_that_reads_the_clock_is_built_every_time(folder, macro):
    source = SOURCE + f"__device__ const char* when() {{ return {macro}; }}"
    build(folder, source)
    assert build(folder, source).build.hit is None


def test_a_header_included_by_a_macro_is_watched(folder):
    source = SOURCE.replace('#include "value.h"', "#define X <value.h>\n#include X")
    build(folder, source)
    expected = nested(folder)
    assert value_of(build(folder, source)) == expected


def test_a_pre_included_header_is_watched(folder):
    (folder / "second/pre.h").write_text("#define VALUE 1\n")
    source = SOURCE.replace('#include "value.h"', "")
    assert value_of(build(folder, source, "-include=pre.h")) == 1
    (folder / "second/pre.h").write_text("#define VALUE 2\n")
    assert value_of(build(folder, source, "-include=pre.h")) == 2


def test_two_pre_included_headers_of_one_name_are_distinguished(folder):
    source = SOURCE.replace('#include "value.h"', "")
    for which, value in (("first", 1), ("second", 2)):
        (folder / which / "pre.h").write_text(f"#define VALUE {value}\n")
    for which, value in (("first", 1), ("second", 2)):
        assert value_of(build(folder, source, f"-include={folder / which}/pre.h")) == value
