"""Tests of recorded dependencies: every change that would change the build is noticed, by stat or by contents."""

import os
import time
from pathlib import Path

import pytest

from rtcompile.compilers import observed
from rtcompile.files import headers as file_times
from tests.key_inputs import HeaderTree
from tests.tables import from_table

ALL = ("user1/a.h", "user1/b.h", "user1/sub/c.h")


@pytest.fixture
def tree(tmp_path: Path) -> HeaderTree:
    """user0 is searched before user1; a.h in user1 includes "b.h" beside it."""
    tree = HeaderTree(tmp_path, "user0", "user1")
    tree.write("user1/a.h", '#include "b.h"\n#include <sub/c.h>\n')
    tree.write("user1/b.h", "b")
    tree.write("user1/sub/c.h", "c")
    later(tmp_path)
    return tree


def later(folder: Path) -> None:
    """Wait until the file clock has left the tick in which `folder`'s files were written."""
    newest = max(path.stat().st_ctime_ns for path in [folder, *folder.rglob("*")])
    while file_times.file_clock_ns() <= newest:
        time.sleep(0.0005)


def test_a_header_is_recorded_by_label_name_content_and_stat(tree):
    (header,) = tree.record("user1/sub/c.h").headers
    status = os.stat(tree.path("user1/sub/c.h"))
    assert header.path == tree.path("user1/sub/c.h")
    assert (header.label, header.relative) == ("user1", "sub/c.h")
    assert header[4:] == (1, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


# --- changes that are noticed --------------------------------------------------------------------


COMPUTED = "#define CAT(a, b) a##b\n#if CAT(__ha, s_include)(<CAT(sub, folder)/opt.h>)\n#endif\n"
ASK = "#if __has_include(%s)\n#endif"
UP, ABSOLUTE = '"../beside/opt.h"', "<{root}/beside/opt.h>"


@from_table
def test_what_appears_or_goes_where_the_compiler_searched_is_noticed(
    tree, source, read, before, change
):
    for name, text in before.items():
        if text.startswith("-> "):
            os.symlink(text[3:], tree.path(name))
        else:
            tree.write(name, text)
    source = source.replace("{root}", str(tree.root))
    inputs = tree.key_inputs(source=source, name=tree.path("project/kernel.cu"))
    recorded = tree.record(*read.split(), inputs=inputs)
    assert not recorded.uncacheable
    assert recorded.current() is not None
    if change[0] == "+":
        tree.write(change[1:], "")
    else:
        os.unlink(tree.path(change[1:]))
    assert recorded.current() is None


def test_a_header_that_replaces_a_folder_and_a_new_search_directory_are_noticed(tree):
    os.rmdir(tree.path("user0"))
    recorded = tree.record("user1/a.h")
    tree.write("user0/a.h/other.h", "")
    assert not recorded.is_unchanged()
    recorded = tree.record("user1/a.h")
    assert recorded.current() is not None
    os.unlink(tree.path("user0/a.h/other.h"))
    os.rmdir(tree.path("user0/a.h"))
    tree.write("user0/a.h", "")
    assert recorded.current() is None


def test_unnamed_subfolders_and_files_that_are_not_headers_are_not_watched(tree):
    tree.write("user1/results/1.h", "")
    tree.write("outside/q.h", '#include "x.h"\n')
    recorded = tree.record("user1/a.h", "outside/q.h")
    for name in ("user1/results/2.h", "user1/table.csv", "user1/__pycache__/m.pyc", "another/x.h"):
        tree.write(name, "")
    assert recorded.current() is not None


# --- builds that are not cached ------------------------------------------------------------------

OUTSIDE = "#define UP(x) <../x>\n#define ASK(x) __has_include(UP(x))\n#if ASK(../a.h)\n#endif"
CLOCK = "const char* t = __TIME__;"


@from_table
def test_a_build_whose_dependencies_are_not_known_is_not_cacheable(
    tree, read, source, header, reason
):
    tree.write("user1/a.h", header)
    assert reason in tree.record(read, inputs=tree.key_inputs(source=source)).uncacheable


def test_a_folder_with_too_many_subfolders_is_not_cacheable(tree, monkeypatch):
    monkeypatch.setattr(observed, "_MAX_FOLDERS", 4)
    recorded = tree.record("user1/a.h")
    assert not recorded.uncacheable
    tree.write("user1/a.h", "#include <1/x.h>\n#include <2/x.h>\n#include <3/x.h>\n")
    for name in "123":
        tree.write(f"user1/{name}/y.h", "")
    assert "too many" in tree.record("user1/a.h").uncacheable


def test_a_header_found_by_a_relative_path_is_not_cacheable(tree):
    recorded = observed.record(["rel.h"], tree.search)
    assert "relative path" in recorded.uncacheable


def test_a_build_that_skipped_an_unreadable_file_is_not_kept(tree, monkeypatch):
    unreadable = tree.write("user0/a.h", "somebody else's")
    monkeypatch.setattr(
        os, "access", lambda path, mode: not (path == unreadable and mode & os.R_OK)
    )

    assert unreadable in tree.record("user1/a.h").uncacheable


# --- by stat or by contents ----------------------------------------------------------------------


def test_the_newest_change_is_that_of_headers_and_searched_folders(tree):
    tree.write("user0/b.h", "not read: a.h has one beside it")
    recorded = tree.record("user1/a.h", "user1/b.h")
    assert recorded.newest_ns == os.stat(tree.path("user0")).st_ctime_ns
    assert recorded.current() is not None


def test_the_toolkit_s_folders_are_not_listed(tmp_path):
    tree = HeaderTree(tmp_path, "user0", "cudart", "cutlass")
    tree.write("cutlass/cute/part.h", "")
    recorded = tree.record("cutlass/cute/part.h")
    assert [path.partition("/.=")[0] for path in recorded.present] == [tree.path("user0")]


# --- one recording for the builds of a batch --------------------------------------


@pytest.mark.parametrize("changed", ["user1/b.h", "user0/sub/c.h", "user0/tested.h"])
def test_a_recording_is_reused_only_if_nothing_changed(tree, changed):
    inputs = tree.key_inputs(source=ASK % "<tested.h>")
    before = tree.record(*ALL, inputs=inputs)
    assert tree.record(*ALL, inputs=inputs) == before
    tree.write(changed, "another")
    later(tree.root)
    after = tree.record(*ALL, inputs=inputs)
    assert after != before
    assert after.current() is after
    assert before.current() is None


def test_a_header_that_could_not_be_read_is_tried_again(tree):
    inputs = tree.key_inputs()
    assert "cannot be read" in tree.record("user1/late.h", inputs=inputs).uncacheable
    tree.write("user1/late.h", "late")
    assert not tree.record("user1/late.h", inputs=inputs).uncacheable


def test_a_named_pipe_under_a_header_s_path_is_not_waited_for(tree):
    path = Path(tree.write("user0/pipe.h", ""))
    known = tree.record("user0/pipe.h")
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in tree.record("user0/pipe.h").uncacheable
    assert known.current() is None
