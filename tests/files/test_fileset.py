"""A `FileSet` is unchanged while its files, absent paths and present paths are as recorded."""

import os
import shutil
import time
import types
from pathlib import Path

import pytest

import rtcompile
from rtcompile import toolkit
from rtcompile.files import fileset, sealed
from rtcompile.files import headers as file_times
from rtcompile.files.fileset import PACKED_FIELDS, FileSet
from rtcompile.files.headers import Header
from tests.tables import from_table

OWN, TOOLKIT = "own/a.h", "toolkit/b.h"


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fileset, "_recently_validated", {})
    monkeypatch.setattr(fileset, "_read", {})


@pytest.fixture
def files(tmp_path: Path) -> FileSet:
    """A header of the user and one of the toolkit, each with an absent and a present path."""
    for name in (OWN, TOOLKIT, "own/there.h", "toolkit/folder/inside"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}\n" * 30)
    time.sleep(0.02)  # a file written within the file clock's current tick is compared by contents
    labels = {OWN: "user0", TOOLKIT: "cudart"}
    return FileSet(
        tuple(
            fileset.read(str(tmp_path / name), label, Path(name).name)[0]
            for name, label in labels.items()
        ),
        absent=(f"{tmp_path}/own/gap.h", f"{tmp_path}/toolkit/gap"),
        present=(f"{tmp_path}/own/there.h", f"{tmp_path}/toolkit/folder/."),
        include_results=("user0/there.h",),
        own_path=("user0",),
    )


def packed(files: FileSet, root: Path) -> list[bytes]:
    return files.packed((f"{root}/toolkit/",))


def edit(root: Path, name: str) -> None:
    (root / name).write_text("another text, longer than the one before\n" * 30)


def an_edit(root: Path) -> None:
    edit(root, OWN)


def an_edit_that_shortens(root: Path) -> None:
    (root / OWN).write_text("a shorter text")


def a_file_in_the_gap(root: Path) -> None:
    edit(root, "own/gap.h")


def replaced(path: Path) -> None:
    """Replace a file by a folder, or a folder by a file."""
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("")
    else:
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (an_edit, "header {}/own/a.h changed"),
        (an_edit_that_shortens, "header {}/own/a.h changed"),
        (lambda root: edit(root, TOOLKIT), "header {}/toolkit/b.h changed"),
        (lambda root: (root / OWN).unlink(), "header {}/own/a.h is gone"),
        (lambda root: replaced(root / OWN), "header {}/own/a.h is gone"),
        (a_file_in_the_gap, "new file {}/own/gap.h comes first"),
        (lambda root: (root / "toolkit/gap").mkdir(), "new file {}/toolkit/gap comes first"),
        (
            lambda root: (root / "own/gap.h").symlink_to(root / "own/there.h"),
            "new file {}/own/gap.h comes first",
        ),
        (lambda root: (root / "own/there.h").unlink(), "{}/own/there.h is gone"),
        (lambda root: replaced(root / "own/there.h"), "{}/own/there.h is gone, or became a folder"),
        (
            lambda root: replaced(root / "toolkit/folder"),
            "{}/toolkit/folder is gone, or became a file",
        ),
    ],
    ids=[
        *("an edit", "one that shortens", "one of the toolkit", "a removal", "now a folder"),
        *("a file in the gap", "a folder in the gap", "a link in the gap"),
        *("a present file removed", "a present file now a folder", "a present folder now a file"),
    ],
)
@pytest.mark.parametrize("form", ["recorded", "packed", "unpacked"])
def test_each_change_is_noticed_by_stat_and_by_contents(files, tmp_path, form, change, expected):
    if form != "recorded":
        fields = packed(files, tmp_path)
        files = FileSet.unpacked(fields) if form == "unpacked" else files
    assert files.is_unchanged()
    assert files.current() is files
    change(tmp_path)
    assert not files.is_unchanged()
    assert files.current() is None
    assert files.difference().startswith(expected.format(tmp_path))


@pytest.mark.parametrize("field", ["size", "mtime_ns", "ctime_ns", "inode"])
@pytest.mark.parametrize("by", [-1, 1])
def test_each_field_of_a_files_stat_must_be_equal(files, field, by):
    own, other = files.headers
    changed = own._replace(**{field: getattr(own, field) + by})
    assert not files.replaced(headers=(changed, other)).is_unchanged()


def test_whether_two_headers_are_one_file_is_part_of_the_set(files, tmp_path):
    """Another machine has other files of the same contents; there it is decided again, for the object's key."""
    paths = [tmp_path / OWN, tmp_path / "own/copy.h"]
    shutil.copyfile(*paths)
    copies = files.replaced(
        headers=tuple(fileset.read(str(path), "user0", path.name)[0] for path in paths)
    )
    assert copies.current() is copies

    paths[1].unlink()
    paths[1].symlink_to(paths[0])
    pair = "user0/a.h and user0/copy.h"
    assert (copies.current(), copies.difference()) == (None, f"{pair} are one file now, or not")
    here = copies.without_stats().with_contents_here()
    assert here.include_results == (*files.include_results, f"one file: {pair}")
    assert here.joined(files).include_results == here.include_results
    problem = files.replaced(uncacheable="why")
    for one, other in ((files, problem), (problem, files), (problem, problem)):
        assert one.joined(other).uncacheable == "why"
    assert here.without_stats().current() is not None


def test_a_new_file_beside_a_present_or_an_absent_one_is_a_change(tmp_path):
    folder, path = str(tmp_path), tmp_path / "there.h"
    path.touch()
    for given in (
        {"absent": f"{path}2"},
        {"present": str(path)},
        {"present": fileset.listing(folder, "")},
    ):
        files = FileSet(**{name: (each,) for name, each in given.items()})
        now = file_times.next_tick()
        (tmp_path / f"{now}.h").touch()
        assert (files.changed_since(now), files.changed_since(now + 10**9)) == (folder, "")


def test_a_device_can_be_present():
    assert FileSet(present=("/dev/null",)).is_unchanged()


def test_packed_fields_are_restored(files, tmp_path):
    fields = packed(files, tmp_path)
    assert len(fields) == PACKED_FIELDS
    restored = FileSet.unpacked(fields)
    assert restored == files
    assert hash(restored) == hash(files)
    assert restored.headers == files.headers
    assert restored.absent == (f"{tmp_path}/own/gap.h", f"{tmp_path}/toolkit/gap")
    assert restored.present == (f"{tmp_path}/own/there.h", f"{tmp_path}/toolkit/folder/.")
    assert restored.include_results == ("user0/there.h",)
    assert restored.own_path == ("user0",)
    assert restored.packed(()) == fields, "packed once"


def test_a_set_is_packed_again_for_another_toolkit(files, tmp_path):
    toolkit_apart, all_own = packed(files, tmp_path), files.packed(())
    assert all_own[4] == b""
    assert toolkit_apart[4] == f"{tmp_path}/{TOOLKIT}\0".encode()
    assert packed(files, tmp_path) == toolkit_apart


def test_an_empty_set_is_empty_in_each_form():
    assert FileSet().is_empty
    assert FileSet.unpacked(FileSet().packed(("/toolkit/",))).is_empty
    assert FileSet().is_unchanged(recent=True)
    assert not FileSet(absent=("/no",)).is_empty
    assert (FileSet().newest_ns, FileSet().uncacheable) == (0, "")


@pytest.mark.parametrize("missing", range(PACKED_FIELDS))
def test_fields_that_lack_something_are_rejected(files, tmp_path, missing):
    fields = packed(files, tmp_path)
    with pytest.raises(ValueError, match="not the fields"):
        FileSet.unpacked(fields[:missing] + fields[missing + 1 :])
    if fields[missing] and missing in (1, 5):
        with pytest.raises(ValueError, match="not the fields"):
            FileSet.unpacked([*fields[:missing], fields[missing][:-8], *fields[missing + 1 :]])


def test_fields_with_more_than_belongs_there_are_rejected(files, tmp_path):
    fields = packed(files, tmp_path)
    for damaged in ([*fields, b""], [fields[0], fields[1] * 2, *fields[2:]]):
        with pytest.raises(ValueError, match="not the fields"):
            FileSet.unpacked(damaged)


@pytest.mark.parametrize("at", [8, 9])
def test_no_header_is_lost_if_the_fields_describe_fewer(files, tmp_path, at):
    fields = packed(files, tmp_path)
    fields[at] = fileset.joined(fileset.texts_in(fields[at])[:-1])
    with pytest.raises(ValueError, match="zip"):
        assert FileSet.unpacked(fields).headers


def test_only_the_toolkits_files_are_trusted_for_a_second(files, tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(fileset, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    fields = packed(files, tmp_path)
    another = FileSet.unpacked(fields)
    assert another.is_unchanged(recent=True)
    edit(tmp_path, TOOLKIT)
    now[0] += 0.9
    assert FileSet.unpacked(fields).is_unchanged(recent=True)
    assert not another.is_unchanged()
    assert not another.is_unchanged(recent=True), "it was seen to have changed"


def test_an_edit_in_the_toolkit_is_noticed_a_second_later(files, tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(fileset, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    packed(files, tmp_path)
    assert files.is_unchanged(recent=True)
    edit(tmp_path, TOOLKIT)
    now[0] += 1.0
    assert not files.is_unchanged(recent=True)


def test_few_recent_checks_are_remembered(monkeypatch):
    def check(*names: str) -> None:
        for name in names:
            unchanged = FileSet(absent=(f"/toolkit/{name}",))
            unchanged.packed(("/toolkit/",))
            assert unchanged.is_unchanged(recent=True)

    monkeypatch.setattr(fileset, "_MAX_REMEMBERED", 2)
    check("a", "b")
    assert len(fileset._recently_validated) == 2
    check("c")
    assert len(fileset._recently_validated) == 1
    check("d")
    monkeypatch.setattr(fileset, "_MAX_REMEMBERED", 1)  # as after two threads added one each
    check("e")
    assert len(fileset._recently_validated) == 1


def test_an_edit_of_the_users_file_is_noticed_at_once(files, tmp_path):
    fields = packed(files, tmp_path)
    assert FileSet.unpacked(fields).is_unchanged(recent=True)
    edit(tmp_path, OWN)
    assert not FileSet.unpacked(fields).is_unchanged(recent=True)


@pytest.mark.needs_compiler
def test_the_toolkit_in_an_image_is_trusted_if_an_option_names_its_folder(tmp_path, monkeypatch):
    """CuPy names CuPy's and the toolkit's folders with -I, in every request under `install()`."""
    monkeypatch.setattr(file_times, "_is_in_image", lambda *given: True)
    own = tmp_path / "own.cuh"
    own.write_text("")
    toolchain = toolkit.current()
    [folder] = {d.path for d in toolchain.search if d.label == "cudart"}
    code = rtcompile.compile(
        '#include <cuda_fp16.h>\n#include "own.cuh"\n__global__ void k() {}',
        options=(f"-I{folder}", f"-I{tmp_path}"),
        arch="sm_80",
    )
    trusted = {h.path: h.mtime_ns > 0 for h in code.build.headers if h.label.startswith("user")}
    assert trusted[str(own)] is False
    assert trusted[f"{folder}/cuda_fp16.h"] is True


@from_table
def test_which_headers_belong_to_the_user(path, label, is_own):
    assert Header(path, label, "x.h", "", 0, 0, 0).is_own is is_own


def test_contents_are_compared_where_times_are_not_trusted(files, tmp_path):
    timeless = tuple(header._replace(mtime_ns=0, ctime_ns=0) for header in files.headers)
    unknown = files.replaced(headers=timeless)
    assert not unknown.is_unchanged()
    fresh = unknown.current()
    assert fresh.is_unchanged()
    edit(tmp_path, OWN)
    assert unknown.current() is None


def test_equal_sets_have_the_same_files_and_the_same_cacheability(files):
    assert files == files.replaced(newest_ns=7)
    one, same = (files.replaced(uncacheable="".join(["__", "TIME__"])) for _ in range(2))
    assert one == same
    for other in (one, files.replaced(absent=(*files.absent, "/proc/nowhere"))):
        assert files != other
        assert other != files


def test_a_replaced_set_keeps_its_other_attributes(files):
    changed = files.replaced(newest_ns=7, uncacheable="why").replaced(own_path=())
    assert (changed.newest_ns, changed.uncacheable, changed.own_path) == (7, "why", ())
    assert changed.headers == files.headers


def test_a_header_whose_edit_was_reverted_is_unchanged(files, tmp_path):
    before = (tmp_path / OWN).read_text()
    edit(tmp_path, OWN)
    assert files.current() is None
    (tmp_path / OWN).write_text(before)
    assert files.current() is not None


@pytest.mark.parametrize("times", [(1, 1), None], ids=["an old time", "now"])
def test_a_touched_header_gets_its_current_times(files, tmp_path, times):
    os.utime(tmp_path / OWN, times)
    assert not files.is_unchanged()
    time.sleep(0.02)  # the change of a time within the current tick is compared by contents
    fresh = files.current()
    assert fresh.headers[0].mtime_ns == os.stat(tmp_path / OWN).st_mtime_ns
    assert fresh.is_unchanged()


@pytest.mark.parametrize("change", [an_edit, an_edit_that_shortens])
def test_the_current_contents_are_found_if_other_contents_are_allowed(files, tmp_path, change):
    change(tmp_path)
    time.sleep(0.02)
    here = files.with_contents_here()
    assert here.headers[0].digest == sealed.content_digest((tmp_path / OWN).read_bytes())
    assert here.headers[1] == files.headers[1]
    assert here.is_unchanged()
    a_file_in_the_gap(tmp_path)
    assert files.with_contents_here() is None


def test_a_header_is_read_again_only_after_it_changed(files, tmp_path, monkeypatch):
    """And once for all builds that depend on it."""
    read, paths = fileset.read, []
    monkeypatch.setattr(
        fileset, "read", lambda path, *more: paths.append(path) or read(path, *more)
    )
    assert files.current() == files
    assert paths == []
    for change in (an_edit, an_edit_that_shortens, an_edit):
        change(tmp_path)
        time.sleep(0.02)
        assert files.current() is None
        assert files.current() is None
        assert paths == [str(tmp_path / OWN)]
        paths.clear()


def test_few_read_headers_are_remembered(files, tmp_path, monkeypatch):
    monkeypatch.setattr(fileset, "_MAX_READ", 2)
    labels = iter("abcde")

    def compare(count: int) -> int:
        """Compare a touched header for so many labels; return how many are remembered."""
        for _ in range(count):
            header = files.headers[0]._replace(label=next(labels), mtime_ns=0)
            assert FileSet((header,)).current() is not None
        return len(fileset._read)

    assert [compare(2), compare(1), compare(1)] == [2, 1, 2]
    monkeypatch.setattr(fileset, "_MAX_READ", 1)  # as after two threads added one each
    assert compare(1) == 1


def test_a_set_that_must_be_compared_each_time_stays_the_same_object(files, monkeypatch):
    """Otherwise each look-up would write its record again."""
    monkeypatch.setattr(file_times, "_is_in_image", lambda *given: True)
    own = files.headers[0]._replace(mtime_ns=0, ctime_ns=0)
    in_image = files.replaced(headers=(own, files.headers[1]))
    assert in_image.current() is in_image


def test_sets_of_many_files_are_unpacked(files, tmp_path):
    for label, header in zip((OWN, TOOLKIT), files.headers, strict=True):
        many = files.replaced(headers=(header,) * 100)
        assert FileSet.unpacked(packed(many, tmp_path)).headers == many.headers, label


@pytest.mark.parametrize("form", ["recorded", "unpacked"])
def test_every_path_of_the_user_and_of_the_toolkit_moves(files, tmp_path, form):
    if form == "unpacked":
        files = FileSet.unpacked(packed(files, tmp_path))
    away = files.moved(lambda path: path.replace(str(tmp_path), "/away"))
    assert [header.path for header in away.headers] == [f"/away/{OWN}", f"/away/{TOOLKIT}"]
    assert [header.digest for header in away.headers] == [h.digest for h in files.headers]
    assert away.absent == ("/away/own/gap.h", "/away/toolkit/gap")
    assert away.present == ("/away/own/there.h", "/away/toolkit/folder/.")
    assert (away.include_results, away.own_path) == (files.include_results, files.own_path)
