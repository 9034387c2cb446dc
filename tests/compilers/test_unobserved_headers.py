"""Compilers whose file accesses are not observed (NVCC, and NVRTC without probes): every change is noticed."""

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import rtcompile
from rtcompile.build import miss
from rtcompile.compilers import observed
from tests.processes import forget_caches

pytestmark = pytest.mark.needs_compiler

Change = Callable[[Path], object]

SOURCE = """
#include <v.h>
#include "linked/w.h"
#if CONDITION
#undef VALUE
#define VALUE 7
#endif
__device__ int value = VALUE + W;
"""

# Conditions that test for ``<sub/opt.h>``; the sources of the tests end with one.
CONDITIONS = {
    "plain": "__has_include(<sub/opt.h>)",
    "a comment between": "__has_include /* c */ ( /* d */ <sub/opt.h>)",
    "next": "(__has_include_next(<sub/opt.h>) || __has_include(<sub/opt.h>))",
    "pasted": "CAT(__ha, s_include)(<sub/opt.h>)",
    "a pasted name": "__has_include(PASTED)",
    "a macro's second argument": "SECOND(<none.h>, <sub/opt.h>)",
    "a macro of an option": "BY_OPTION",
}
MACROS = """
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
#define PASTED <CAT(su, b)/CAT(op, t).h>
#define SECOND(a, b) __has_include(b)
"""


class Project:
    """Folders ``first`` and ``second``, which are searched in this order, and a build of `SOURCE`."""

    def __init__(self, root: Path, backend: str) -> None:
        self.root, self.backend = root, backend
        for name in ("first", "second/sub", "v1", "v2", "forced"):
            (root / name).mkdir(parents=True)
        (root / "second/v.h").write_text("#define VALUE 1\n")
        (root / "second/forced.h").write_text("#define FORCED 1\n")
        for name, value in (("v1", 10), ("v2", 20)):
            (root / name / "w.h").write_text(f"#define W {value}\n")
        (root / "second/linked").symlink_to("../v1")
        time.sleep(0.02)  # out of the file clock's tick

    def value(
        self, condition: str = CONDITIONS["plain"], *options: str
    ) -> tuple[int | None, str | None]:
        """Build; return the value in the code (None if compiling is forbidden or fails), and the hit."""
        try:
            code = self.build(condition, *options)
        except rtcompile.CompileError:
            return None, None
        (found,) = re.findall(rb" value = (\d+);", code.code)
        return int(found), code.build.hit

    def build(self, condition: str, *options: str, more: str = "") -> rtcompile.ObjectCode:
        """Build as a new process; the source ends with `more`."""
        forget_caches()
        folders = (f"-I{self.root}/first", f"-I{self.root}/second", "-include=forced.h")
        option = "-DBY_OPTION=__has_include(<sub/opt.h>)"
        return rtcompile.compile(
            MACROS + SOURCE.replace("CONDITION", condition) + more,
            options=(*folders, option, *options),
            arch="sm_80",
            target="ptx",
            backend=self.backend,
        )


@pytest.fixture(params=[pytest.param("nvcc", marks=pytest.mark.needs_nvcc), "nvrtc"])
def project(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Project:
    real = observed.job_fields
    # As if the probes had failed their check.
    monkeypatch.setattr(observed, "job_fields", lambda *given: {**real(*given), "unobserved": True})
    monkeypatch.setattr(miss, "_observed", set())  # as in a process that cannot observe NVRTC
    return Project(tmp_path, request.param)


def edited(root):
    (root / "second/v.h").write_text("#define VALUE 2\n")


def edited_with_its_old_times(root):
    before = (root / "second/v.h").stat()
    edited(root)
    os.utime(root / "second/v.h", ns=(before.st_atime_ns, before.st_mtime_ns))


def shadowed(root):
    (root / "first/v.h").write_text("#define VALUE 3\n")


def shadowed_from_a_new_folder(root):
    (root / "first/linked").mkdir()
    (root / "first/linked/w.h").write_text("#define W 30\n")


def another_folder_in_its_place(root):
    shutil.copytree(root / "second", root / "new", symlinks=True)
    (root / "new/v.h").write_text("#define VALUE 4\n")
    (root / "second").rename(root / "old")
    (root / "new").rename(root / "second")


def linked_elsewhere(root):
    (root / "second/linked").unlink()
    (root / "second/linked").symlink_to("../v2")


def edited_behind_the_link(root):
    (root / "v1/w.h").write_text("#define W 50\n")


def a_tested_header_appears(root):
    (root / "second/sub/opt.h").write_text("")


def a_tested_header_appears_by_a_link(root):
    (root / "first/sub").symlink_to("../target")
    (root / "target").mkdir()
    (root / "target/opt.h").write_text("")


CHANGES: dict[Change, int | None] = {
    edited: 12,
    edited_with_its_old_times: 12,
    lambda root: (root / "second/v.h").unlink(): None,
    shadowed: 13,
    shadowed_from_a_new_folder: 31,
    another_folder_in_its_place: 14,
    linked_elsewhere: 21,
    edited_behind_the_link: 51,
    a_tested_header_appears: 17,
    a_tested_header_appears_by_a_link: 17,
}


@pytest.mark.some(1, project="nvcc")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_between_two_builds_is_noticed(project, change):
    assert project.value() == (11, None)
    assert project.value() == (11, "disk")
    change(project.root)
    assert project.value() == (CHANGES[change], None)


@pytest.mark.some(0, project="nvcc")
@pytest.mark.parametrize("how", CONDITIONS)
def test_headers_tested_by_has_include_are_noticed_in_any_spelling(project, how):
    opt = project.root / "second/sub/opt.h"
    condition = CONDITIONS[how]
    for value, change in ((11, opt.touch), (17, opt.unlink), (11, opt.parent.rmdir)):
        assert project.value(condition)[0] == value
        assert project.value(condition) == (value, "disk")
        change()
        time.sleep(0.02)
    assert project.value(condition)[0] == 11


# --- during a build ------------------------------------------------------------------------------


def the_folder_above_swapped(root):
    """Replace the tree by one of the same age, so only its identity differs."""
    root.rename(root.parent / "old")
    (root.parent / "another").rename(root)
    (root / "made.txt").touch()  # makes the times of the swapped folder equal


DURING: tuple[Change, ...] = (
    edited,
    edited_with_its_old_times,
    shadowed,
    linked_elsewhere,
    edited_behind_the_link,
    lambda root: (root / "second/sub/opt.h").unlink(),
    lambda root: (root / "second/sub").rename(root / "second/away"),
    the_folder_above_swapped,
)


@pytest.mark.some(1, project="nvcc")
@pytest.mark.parametrize("change", DURING)
def test_a_build_during_which_something_changed_is_not_kept(project, at_the_end, change):
    project.root /= "project"
    for root in (project.root.parent / "another", project.root):
        project.root.parent.joinpath(root.name).mkdir()
        Project(root, project.backend)
    (project.root / "second/sub/opt.h").touch()
    time.sleep(0.02)
    at_the_end.append(lambda: change(project.root))
    assert project.value() == (17, None)
    again = project.value()
    assert again[1] is None
    assert change is edited_with_its_old_times or again[0] is not None


@pytest.mark.some(1, project="nvcc")
@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        pytest.param('__device__ const char* data = "../none/all.h";', True, id="a string"),
        pytest.param('#if __has_include("../none/all.h")\n#endif', False, id="a directive"),
        pytest.param('/*\n*/ %: define H "../none\\\n/all.h"', False, id="a macro"),
    ],
)
def test_only_what_a_directive_names_is_looked_for_outside_of_the_searched_folders(
    project, at_the_end, text, is_kept
):
    """Programs name their data by such strings; the folder may change all the time, as /tmp does."""
    at_the_end.append((project.root / "made").touch)
    notes = project.build("0", more=text).build.notes
    expected = f"not cached: {project.root} changed while the compiler ran"
    assert notes == (expected,) * (not is_kept)
    assert project.build("0", more=text).build.hit == ("disk" if is_kept else None)


@pytest.mark.some(0, project="nvcc")
def test_an_option_may_name_a_header_outside_of_the_searched_folders(project, at_the_end):
    at_the_end.append((project.root / "made").touch)
    [note] = project.build("0", '-DH="../none/all.h"').build.notes
    assert "changed while the compiler ran" in note
