"""Tests of recorded dependencies: every change that would change the build is noticed, by stat or by contents."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rtcompile.compilers import unobserved
from rtcompile.files import file_times
from rtcompile.files.fileset import FileSet
from tests.key_inputs import HeaderTree


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


def test_a_header_is_recorded_by_label_name_content_and_stat(tree: HeaderTree) -> None:
    (header,) = tree.record("user1/sub/c.h").headers
    status = os.stat(tree.path("user1/sub/c.h"))
    assert header.path == tree.path("user1/sub/c.h")
    assert (header.label, header.relative) == ("user1", "sub/c.h")
    assert header[4:] == (1, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def edit(tree: HeaderTree) -> None:
    tree.write("user1/a.h", "edited")


def edit_of_equal_size_with_its_old_mtime(tree: HeaderTree) -> None:
    path = tree.path("user1/b.h")
    times = os.stat(path)
    tree.write("user1/b.h", "B")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def removal(tree: HeaderTree) -> None:
    os.unlink(tree.path("user1/sub/c.h"))


def shadow(tree: HeaderTree) -> None:
    tree.write("user0/a.h", "another")


def shadow_in_a_new_folder(tree: HeaderTree) -> None:
    tree.write("user0/sub/c.h", "another")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        pytest.param(edit, "header {}/user1/a.h changed", id="edit"),
        pytest.param(
            edit_of_equal_size_with_its_old_mtime,
            "header {}/user1/b.h changed",
            id="edit of equal size and mtime",
        ),
        pytest.param(removal, "header {}/user1/sub/c.h is gone", id="removal"),
        pytest.param(
            shadow, "files were added to or removed from {}/user0, which", id="new shadow"
        ),
        pytest.param(
            shadow_in_a_new_folder, "files were added to or removed from {}/user0", id="new folder"
        ),
    ],
)
def test_a_change_is_noticed_and_named(
    tree: HeaderTree, change: Callable[[HeaderTree], None], why: str
) -> None:
    recorded = tree.record("user1/a.h", "user1/b.h", "user1/sub/c.h")
    assert recorded.is_unchanged()
    change(tree)
    assert recorded.current() is None
    assert recorded.difference().startswith(why.format(tree.root))


def test_a_dangling_link_that_gets_a_target_shadows_a_header(tree: HeaderTree) -> None:
    os.symlink("target", tree.path("user0/sub"))
    recorded = tree.record("user1/sub/c.h")
    assert recorded.current() is not None
    tree.write("user0/target/c.h", "another")
    assert recorded.current() is None


def test_a_quoted_include_is_watched_beside_the_including_file(tree: HeaderTree) -> None:
    tree.write("outside/q.h", '#include "x.h"\n')
    recorded = tree.record("outside/q.h", "user1/a.h")
    tree.write("another/x.h", "")
    assert recorded.current() is not None, "nobody searched there"
    tree.write("outside/x.h", "")
    assert recorded.current() is None


def test_a_quoted_include_of_the_source_is_watched_beside_the_program(tree: HeaderTree) -> None:
    inputs = tree.key_inputs(source='#include "a.h"', name=tree.path("project/kernel.cu"))
    recorded = tree.record("user1/a.h", inputs=inputs)
    tree.write("project/a.h", "")
    assert recorded.current() is None


def test_a_computed_include_may_have_been_quoted(tree: HeaderTree) -> None:
    tree.write("user0/q.h", "#define X <a.h>\n#include X\n")
    recorded = tree.record("user0/q.h", "user1/a.h")
    tree.write("user0/a.h", "")
    assert recorded.current() is None


def test_a_host_header_can_be_shadowed_by_any_end_of_its_path(tree: HeaderTree) -> None:
    host = tree.write("usr/include/c++/13/bits/stl.h", "")
    recorded = tree.record(host)
    tree.write("user1/bits/stl.h", "")
    assert recorded.current() is None


def test_a_header_may_replace_a_folder_of_its_name(tree: HeaderTree) -> None:
    Path(tree.path("user0/a.h")).mkdir()
    recorded = tree.record("user1/a.h")
    assert recorded.current() is not None
    Path(tree.path("user0/a.h")).rmdir()
    tree.write("user0/a.h", "")
    assert recorded.current() is None


def test_a_missing_search_directory_may_appear(tmp_path: Path) -> None:
    tree = HeaderTree(tmp_path, "user0", "user1")
    tree.write("user1/a.h", "")
    os.rmdir(tree.path("user0"))
    recorded = tree.record("user1/a.h")
    tree.write("user0/other.h", "")
    assert not recorded.is_unchanged()


@pytest.mark.parametrize("spelling", ["<opt.h>", '"opt.h"', "<folder/opt.h>"])
def test_a_path_that_has_include_did_not_find_must_not_appear(
    tree: HeaderTree, spelling: str
) -> None:
    inputs = tree.key_inputs(source=f"#if __has_include({spelling})\n#endif")
    recorded = tree.record(inputs=inputs)
    assert recorded.current() is not None
    tree.write(f"user1/{spelling[1:-1]}", "")
    assert recorded.current() is None


def test_a_path_that_has_include_found_must_remain(tree: HeaderTree) -> None:
    inputs = tree.key_inputs(source="#if __has_include(<a.h>)\n#endif")
    recorded = tree.record(inputs=inputs)
    assert recorded.current() is not None
    os.unlink(tree.path("user1/a.h"))
    assert recorded.current() is None


def test_has_include_of_a_header_looks_beside_it(tree: HeaderTree) -> None:
    tree.write("user1/sub/c.h", '#if __has_include("opt.h")\n#endif')
    recorded = tree.record("user1/sub/c.h")
    tree.write("user1/sub/opt.h", "")
    assert recorded.current() is None


@pytest.mark.parametrize("where", ["source", "header"])
def test_a_text_that_reads_the_clock_is_not_cacheable(tree: HeaderTree, where: str) -> None:
    text = "const char* t = __TIME__;"
    tree.write("user1/a.h", text if where == "header" else "")
    inputs = tree.key_inputs(source=text if where == "source" else "")
    assert "__TIME__ is different" in tree.record("user1/a.h", inputs=inputs).uncacheable


COMPUTED = """
#define CAT(a, b) a##b
#if CAT(__ha, s_include)(<CAT(sub, folder)/opt.h>)
#endif
"""


@pytest.mark.parametrize(
    ("source", "folder"),
    [
        pytest.param("#include <sub/c.h>", "user1/sub", id="named"),
        pytest.param("#include <v/x.h>", "user1/v", id="named, behind a link"),
        pytest.param(COMPUTED, "user1/subfolder", id="put together"),
    ],
)
def test_subfolders_that_a_text_can_name_are_watched(
    tree: HeaderTree, source: str, folder: str
) -> None:
    tree.write("user1/subfolder/other.h", "")
    os.symlink(tree.write("linked/x.h", "").removesuffix("/x.h"), tree.path("user1/v"))
    recorded = tree.record("user1/a.h", inputs=tree.key_inputs(source=source))
    assert recorded.current() is not None
    tree.write(f"{folder}/opt.h", "")
    assert recorded.current() is None


def test_unnamed_subfolders_and_files_that_are_not_headers_are_not_watched(
    tree: HeaderTree,
) -> None:
    tree.write("user1/results/1.h", "")
    recorded = tree.record("user1/a.h")
    tree.write("user1/results/2.h", "")
    tree.write("user1/table.csv", "")
    tree.write("user1/__pycache__/module.pyc", "")
    assert recorded.current() is not None
    recorded = tree.record("user1/a.h", inputs=tree.key_inputs(source='#include "table.csv"'))
    tree.write("user0/table.csv", "")
    assert recorded.current() is None


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("spelling", ['"../beside/opt.h"', "<{}/beside/opt.h>"])
def test_a_name_outside_the_searched_folders_is_watched(
    tree: HeaderTree, spelling: str, there: bool
) -> None:
    tree.write("beside/another.h", "")
    if there:
        tree.write("beside/opt.h", "")
    spelling = spelling.format(tree.root)
    inputs = tree.key_inputs(source=f"#if __has_include({spelling})\n#endif\n")
    recorded = tree.record(inputs=inputs)
    assert not recorded.uncacheable
    assert recorded.current() is not None
    if there:
        os.unlink(tree.path("beside/opt.h"))
    else:
        tree.write("beside/opt.h", "")
    assert recorded.current() is None


def test_a_macros_name_outside_the_searched_folders_is_not_cacheable(
    tree: HeaderTree,
) -> None:
    source = "#define UP(x) <../x>\n#define ASK(x) __has_include(UP(x))\n#if ASK(../a.h)\n#endif"
    recorded = tree.record(inputs=tree.key_inputs(source=source))
    assert "outside" in recorded.uncacheable


def test_a_folder_with_too_many_subfolders_is_not_cacheable(
    tree: HeaderTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unobserved, "_MAX_FOLDERS", 4)
    recorded = tree.record("user1/a.h")
    assert not recorded.uncacheable
    tree.write("user1/a.h", "#include <1/x.h>\n#include <2/x.h>\n#include <3/x.h>\n")
    for name in "123":
        tree.write(f"user1/{name}/y.h", "")
    assert "too many" in tree.record("user1/a.h").uncacheable


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        pytest.param("gone.h", "cannot be read", id="gone since"),
        pytest.param("user0", "cannot be read", id="a folder"),
    ],
)
def test_a_header_that_cannot_be_read_again_is_not_cacheable(
    tree: HeaderTree, path: str, reason: str
) -> None:
    assert reason in tree.record(path).uncacheable


def test_a_header_found_by_a_relative_path_is_not_cacheable(tree: HeaderTree) -> None:
    recorded = unobserved.record(["rel.h"], tree.search)
    assert "relative path" in recorded.uncacheable


def test_the_same_content_with_another_stat_is_unchanged(tree: HeaderTree) -> None:
    recorded = tree.record("user1/a.h", "user1/b.h")
    os.utime(tree.path("user1/a.h"))
    tree.write("user1/b.h", "b")
    assert not recorded.is_unchanged()
    later(tree.root)
    fresh = recorded.refreshed()
    assert fresh is not None
    assert fresh.is_unchanged()
    assert [h.digest for h in fresh.headers] == [h.digest for h in recorded.headers]


def test_a_link_that_changes_to_an_equal_file_is_noticed(tree: HeaderTree) -> None:
    one, other = tree.write("v1/x.h", "1"), tree.write("v2/x.h", "2")
    times = os.stat(one)
    os.symlink(one, tree.path("user1/x.h"))
    later(tree.root)
    recorded = tree.record("user1/x.h")
    # The equal file differs only in its inode, like two files written within one tick.
    (header,) = recorded.headers
    os.unlink(tree.path("user1/x.h"))
    os.symlink(other, tree.path("user1/x.h"))
    twin = os.stat(other)
    as_if = header._replace(
        mtime_ns=header.mtime_ns + twin.st_mtime_ns - times.st_mtime_ns,
        ctime_ns=header.ctime_ns + twin.st_ctime_ns - times.st_ctime_ns,
    )
    assert FileSet(headers=(as_if,)).current() is None


def test_a_header_that_may_still_change_within_its_tick_is_read_again(
    tree: HeaderTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tree.path("user1/a.h")
    tick = os.stat(path).st_ctime_ns
    monkeypatch.setattr(file_times, "file_clock_ns", lambda: tick)
    recorded = tree.record("user1/a.h")
    assert not recorded.is_unchanged(), "no stat may vouch for it yet"
    assert recorded.current() is not None
    fresh = recorded.refreshed()
    assert fresh is not None
    assert not fresh.is_unchanged(), "the clock has not moved on"
    monkeypatch.setattr(file_times, "file_clock_ns", lambda: tick + 1)
    fresh = recorded.refreshed()
    assert fresh is not None
    assert fresh.is_unchanged()


def test_the_newest_change_is_that_of_headers_and_searched_folders(tree: HeaderTree) -> None:
    tree.write("user0/b.h", "not read: a.h has one beside it")
    recorded = tree.record("user1/a.h", "user1/b.h")
    assert recorded.newest_ns == os.stat(tree.path("user0")).st_ctime_ns
    assert recorded.current() is not None


def test_a_second_recording_notices_an_edit(tree: HeaderTree) -> None:
    before = tree.record("user1/a.h")
    tree.write("user1/a.h", "edited")
    after = tree.record("user1/a.h")
    assert before.headers[0].digest != after.headers[0].digest


def test_the_toolkit_s_folders_are_not_listed(tmp_path: Path) -> None:
    tree = HeaderTree(tmp_path, "user0", "cudart", "cutlass")
    tree.write("cutlass/cute/part.h", "")
    recorded = tree.record("cutlass/cute/part.h")
    assert [path.partition("/.=")[0] for path in recorded.present] == [tree.path("user0")]


# --- one recording for the builds of a batch --------------------------------------


def a_new_text(tree: HeaderTree) -> None:
    tree.write("user1/b.h", "another")


def a_header_in_front(tree: HeaderTree) -> None:
    tree.write("user0/sub/c.h", "in front")


def a_found_header(tree: HeaderTree) -> None:
    tree.write("user0/tested.h", "there now")


@pytest.mark.parametrize("change", [a_new_text, a_header_in_front, a_found_header])
def test_a_recording_is_reused_only_if_nothing_changed(
    tree: HeaderTree, change: Callable[[HeaderTree], None]
) -> None:
    names = ("user1/a.h", "user1/b.h", "user1/sub/c.h")
    inputs = tree.key_inputs(source="#if __has_include(<tested.h>)\n#endif\n")
    before = tree.record(*names, inputs=inputs)
    assert tree.record(*names, inputs=inputs) == before
    change(tree)
    later(tree.root)
    after = tree.record(*names, inputs=inputs)
    assert after != before
    assert after.current() is after
    assert before.current() is None


def test_a_header_that_could_not_be_read_is_tried_again(tree: HeaderTree) -> None:
    inputs = tree.key_inputs()
    assert "cannot be read" in tree.record("user1/late.h", inputs=inputs).uncacheable
    tree.write("user1/late.h", "late")
    assert not tree.record("user1/late.h", inputs=inputs).uncacheable


@pytest.mark.parametrize("when", ["recorded", "checked"])
def test_a_named_pipe_under_a_header_s_path_is_not_waited_for(tree: HeaderTree, when: str) -> None:
    path = Path(tree.write("user0/pipe.h", ""))
    known = tree.record("user0/pipe.h")
    path.unlink()
    os.mkfifo(path)
    if when == "recorded":
        assert "not a regular file" in tree.record("user0/pipe.h").uncacheable
    else:
        assert known.refreshed() is None


def test_a_build_that_skipped_an_unreadable_file_is_not_kept(
    tree: HeaderTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.write("user0/a.h", "somebody else's")
    unreadable = tree.path("user0/a.h")
    monkeypatch.setattr(
        os, "access", lambda path, mode: not (path == unreadable and mode & os.R_OK)
    )

    assert unreadable in tree.record("user1/a.h").uncacheable
