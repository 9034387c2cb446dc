"""Dependencies: every change that would change the build is seen, by stat or by content."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rtcompile.files import clocks
from rtcompile.files.fileset import FileSet
from rtcompile.store import manifests
from tests.questions import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """user0 is searched before user1; a.h in user1 includes "b.h" beside it."""
    place = Place(tmp_path, "user0", "user1")
    place.write("user1/a.h", '#include "b.h"\n#include <sub/c.h>\n')
    place.write("user1/b.h", "b")
    place.write("user1/sub/c.h", "c")
    later(tmp_path)
    return place


def later(folder: Path) -> None:
    """Wait until the file clock has left the tick in which `folder`'s files were written."""
    newest = max(path.stat().st_ctime_ns for path in [folder, *folder.rglob("*")])
    while clocks.file_clock_ns() <= newest:
        time.sleep(0.0005)


def test_a_header_is_recorded_by_label_name_content_and_stat(place: Place) -> None:
    (header,) = place.record("user1/sub/c.h").headers
    status = os.stat(place.path("user1/sub/c.h"))
    assert header.path == place.path("user1/sub/c.h")
    assert (header.label, header.relative) == ("user1", "sub/c.h")
    assert header[4:] == (1, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def edit(place: Place) -> None:
    place.write("user1/a.h", "edited")


def edit_of_equal_size_with_its_old_mtime(place: Place) -> None:
    path = place.path("user1/b.h")
    times = os.stat(path)
    place.write("user1/b.h", "B")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def removal(place: Place) -> None:
    os.unlink(place.path("user1/sub/c.h"))


def shadow(place: Place) -> None:
    place.write("user0/a.h", "another")


def shadow_in_a_new_folder(place: Place) -> None:
    place.write("user0/sub/c.h", "another")


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
        pytest.param(shadow, "the files in {}/user0 are others", id="new shadow"),
        pytest.param(shadow_in_a_new_folder, "the files in {}/user0 are", id="new folder"),
    ],
)
def test_a_change_is_seen_and_named(
    place: Place, change: Callable[[Place], None], why: str
) -> None:
    recorded = place.record("user1/a.h", "user1/b.h", "user1/sub/c.h")
    assert recorded.unchanged()
    change(place)
    assert recorded.current() is None
    assert recorded.difference().startswith(why.format(place.root))


def test_a_dangling_link_that_comes_alive_shadows(place: Place) -> None:
    os.symlink("elsewhere", place.path("user0/sub"))
    recorded = place.record("user1/sub/c.h")
    assert recorded.current() is not None
    place.write("user0/elsewhere/c.h", "another")
    assert recorded.current() is None


def test_a_quoted_include_would_be_found_beside_the_file_that_has_it(place: Place) -> None:
    place.write("elsewhere/q.h", '#include "x.h"\n')
    recorded = place.record("elsewhere/q.h", "user1/a.h")
    place.write("another/x.h", "")
    assert recorded.current() is not None, "nobody searched there"
    place.write("elsewhere/x.h", "")
    assert recorded.current() is None


def test_a_quoted_include_of_the_source_would_be_found_beside_the_program(place: Place) -> None:
    question = place.question(source='#include "a.h"', name=place.path("project/kernel.cu"))
    recorded = place.record("user1/a.h", question=question)
    place.write("project/a.h", "")
    assert recorded.current() is None


def test_a_computed_include_may_have_been_quoted(place: Place) -> None:
    place.write("user0/q.h", "#define X <a.h>\n#include X\n")
    recorded = place.record("user0/q.h", "user1/a.h")
    place.write("user0/a.h", "")
    assert recorded.current() is None


def test_a_header_of_the_host_is_shadowed_by_any_of_its_tails(place: Place) -> None:
    host = place.write("usr/include/c++/13/bits/stl.h", "")
    recorded = place.record(host)
    place.write("user1/bits/stl.h", "")
    assert recorded.current() is None


def test_a_name_taken_by_a_folder_is_free_for_a_header_once_it_is_gone(place: Place) -> None:
    Path(place.path("user0/a.h")).mkdir()
    recorded = place.record("user1/a.h")
    assert recorded.current() is not None
    Path(place.path("user0/a.h")).rmdir()
    place.write("user0/a.h", "")
    assert recorded.current() is None


def test_a_search_directory_that_is_not_there_may_come(tmp_path: Path) -> None:
    place = Place(tmp_path, "user0", "user1")
    place.write("user1/a.h", "")
    os.rmdir(place.path("user0"))
    recorded = place.record("user1/a.h")
    place.write("user0/other.h", "")
    assert not recorded.unchanged()


@pytest.mark.parametrize("spelling", ["<opt.h>", '"opt.h"', "<folder/opt.h>"])
def test_what_has_include_did_not_find_must_not_appear(place: Place, spelling: str) -> None:
    question = place.question(source=f"#if __has_include({spelling})\n#endif")
    recorded = place.record(question=question)
    assert recorded.current() is not None
    place.write(f"user1/{spelling[1:-1]}", "")
    assert recorded.current() is None


def test_what_has_include_found_must_stay(place: Place) -> None:
    question = place.question(source="#if __has_include(<a.h>)\n#endif")
    recorded = place.record(question=question)
    assert recorded.current() is not None
    os.unlink(place.path("user1/a.h"))
    assert recorded.current() is None


def test_has_include_of_a_header_looks_beside_it(place: Place) -> None:
    place.write("user1/sub/c.h", '#if __has_include("opt.h")\n#endif')
    recorded = place.record("user1/sub/c.h")
    place.write("user1/sub/opt.h", "")
    assert recorded.current() is None


@pytest.mark.parametrize("where", ["source", "header"])
def test_what_reads_the_clock_is_not_cacheable(place: Place, where: str) -> None:
    text = "const char* t = __TIME__;"
    place.write("user1/a.h", text if where == "header" else "")
    question = place.question(source=text if where == "source" else "")
    assert "__TIME__ is different" in place.record("user1/a.h", question=question).uncacheable


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
def test_the_folders_below_that_a_text_can_name_are_watched(
    place: Place, source: str, folder: str
) -> None:
    place.write("user1/subfolder/other.h", "")
    os.symlink(place.write("linked/x.h", "").removesuffix("/x.h"), place.path("user1/v"))
    recorded = place.record("user1/a.h", question=place.question(source=source))
    assert recorded.current() is not None
    place.write(f"{folder}/opt.h", "")
    assert recorded.current() is None


def test_a_folder_below_that_nobody_names_and_files_that_are_no_headers_do_not_count(
    place: Place,
) -> None:
    place.write("user1/results/1.h", "")
    recorded = place.record("user1/a.h")
    place.write("user1/results/2.h", "")
    place.write("user1/table.csv", "")
    place.write("user1/__pycache__/module.pyc", "")
    assert recorded.current() is not None
    recorded = place.record("user1/a.h", question=place.question(source='#include "table.csv"'))
    place.write("user0/table.csv", "")
    assert recorded.current() is None


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("spelling", ['"../beside/opt.h"', "<{}/beside/opt.h>"])
def test_a_name_that_leads_out_of_the_searched_folders_is_looked_up(
    place: Place, spelling: str, there: bool
) -> None:
    place.write("beside/another.h", "")
    if there:
        place.write("beside/opt.h", "")
    spelling = spelling.format(place.root)
    question = place.question(source=f"#if __has_include({spelling})\n#endif\n")
    recorded = place.record(question=question)
    assert not recorded.uncacheable
    assert recorded.current() is not None
    if there:
        os.unlink(place.path("beside/opt.h"))
    else:
        place.write("beside/opt.h", "")
    assert recorded.current() is None


def test_a_name_that_a_macro_leads_out_of_the_searched_folders_is_not_cacheable(
    place: Place,
) -> None:
    source = "#define UP(x) <../x>\n#define ASK(x) __has_include(UP(x))\n#if ASK(../a.h)\n#endif"
    recorded = place.record(question=place.question(source=source))
    assert "outside" in recorded.uncacheable


def test_a_folder_with_too_many_others_below_it_is_not_cacheable(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "_MAX_FOLDERS", 4)
    recorded = place.record("user1/a.h")
    assert not recorded.uncacheable
    place.write("user1/a.h", "#include <1/x.h>\n#include <2/x.h>\n#include <3/x.h>\n")
    for name in "123":
        place.write(f"user1/{name}/y.h", "")
    assert "too many" in place.record("user1/a.h").uncacheable


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        pytest.param("gone.h", "cannot be read", id="gone since"),
        pytest.param("user0", "cannot be read", id="a folder"),
    ],
)
def test_what_cannot_be_read_again_is_not_cacheable(place: Place, path: str, reason: str) -> None:
    assert reason in place.record(path).uncacheable


def test_a_header_found_by_a_relative_path_is_not_cacheable(place: Place) -> None:
    recorded = manifests.record(["rel.h"], place.search)
    assert "relative path" in recorded.uncacheable


def test_the_same_content_with_another_stat_is_unchanged(place: Place) -> None:
    recorded = place.record("user1/a.h", "user1/b.h")
    os.utime(place.path("user1/a.h"))
    place.write("user1/b.h", "b")
    assert not recorded.unchanged()
    later(place.root)
    fresh = recorded.refreshed()
    assert fresh is not None
    assert fresh.unchanged()
    assert [h.digest for h in fresh.headers] == [h.digest for h in recorded.headers]


def test_a_link_that_turns_to_a_twin_is_seen(place: Place) -> None:
    one, other = place.write("v1/x.h", "1"), place.write("v2/x.h", "2")
    times = os.stat(one)
    os.symlink(one, place.path("user1/x.h"))
    later(place.root)
    recorded = place.record("user1/x.h")
    # The twin differs in the inode alone, as two files written within one tick would.
    (header,) = recorded.headers
    os.unlink(place.path("user1/x.h"))
    os.symlink(other, place.path("user1/x.h"))
    twin = os.stat(other)
    as_if = header._replace(
        mtime_ns=header.mtime_ns + twin.st_mtime_ns - times.st_mtime_ns,
        ctime_ns=header.ctime_ns + twin.st_ctime_ns - times.st_ctime_ns,
    )
    assert FileSet(headers=(as_if,)).current() is None


def test_a_header_that_may_still_change_within_its_tick_is_read_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place.path("user1/a.h")
    tick = os.stat(path).st_ctime_ns
    monkeypatch.setattr(clocks, "file_clock_ns", lambda: tick)
    recorded = place.record("user1/a.h")
    assert not recorded.unchanged(), "no stat may vouch for it yet"
    assert recorded.current() is not None
    fresh = recorded.refreshed()
    assert fresh is not None
    assert not fresh.unchanged(), "the clock has not moved on"
    monkeypatch.setattr(clocks, "file_clock_ns", lambda: tick + 1)
    fresh = recorded.refreshed()
    assert fresh is not None
    assert fresh.unchanged()


def test_the_newest_change_is_that_of_headers_and_searched_folders(place: Place) -> None:
    place.write("user0/b.h", "not read: a.h has one beside it")
    recorded = place.record("user1/a.h", "user1/b.h")
    assert recorded.newest_ns == os.stat(place.path("user0")).st_ctime_ns
    assert recorded.current() is not None


def test_a_second_recording_sees_an_edit(place: Place) -> None:
    before = place.record("user1/a.h")
    place.write("user1/a.h", "edited")
    after = place.record("user1/a.h")
    assert before.headers[0].digest != after.headers[0].digest


def test_the_toolkit_s_folders_are_not_listed(tmp_path: Path) -> None:
    place = Place(tmp_path, "user0", "cudart", "cutlass")
    place.write("cutlass/cute/part.h", "")
    recorded = place.record("cutlass/cute/part.h")
    assert [path.partition("/.=")[0] for path in recorded.present] == [place.path("user0")]


# --- recording once what a batch's builds have in common --------------------------------------


def a_new_text(place: Place) -> None:
    place.write("user1/b.h", "another")


def a_header_in_front(place: Place) -> None:
    place.write("user0/sub/c.h", "in front")


def an_answer(place: Place) -> None:
    place.write("user0/asked.h", "there now")


@pytest.mark.parametrize("change", [a_new_text, a_header_in_front, an_answer])
def test_what_was_recorded_before_is_taken_only_if_nothing_changed(
    place: Place, change: Callable[[Place], None]
) -> None:
    names = ("user1/a.h", "user1/b.h", "user1/sub/c.h")
    question = place.question(source="#if __has_include(<asked.h>)\n#endif\n")
    before = place.record(*names, question=question)
    assert place.record(*names, question=question) == before
    change(place)
    later(place.root)
    after = place.record(*names, question=question)
    assert after != before
    assert after.current() is after
    assert before.current() is None


def test_a_header_that_could_not_be_read_is_tried_again(place: Place) -> None:
    question = place.question()
    assert "cannot be read" in place.record("user1/late.h", question=question).uncacheable
    place.write("user1/late.h", "late")
    assert not place.record("user1/late.h", question=question).uncacheable


@pytest.mark.parametrize("when", ["recorded", "checked"])
def test_a_named_pipe_in_a_header_s_place_is_not_waited_for(place: Place, when: str) -> None:
    path = Path(place.write("user0/pipe.h", ""))
    known = place.record("user0/pipe.h")
    path.unlink()
    os.mkfifo(path)
    if when == "recorded":
        assert "not a regular file" in place.record("user0/pipe.h").uncacheable
    else:
        assert known.refreshed() is None


def test_a_build_that_passed_over_a_file_that_it_may_not_read_is_not_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.write("user0/a.h", "somebody else's")
    unreadable = place.path("user0/a.h")
    monkeypatch.setattr(
        os, "access", lambda path, mode: not (path == unreadable and mode & os.R_OK)
    )

    assert unreadable in place.record("user1/a.h").uncacheable
