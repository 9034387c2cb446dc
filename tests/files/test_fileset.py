"""A `FileSet` is unchanged while its files, absent paths and present paths are as recorded."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import rtcompile
from rtcompile import toolkit
from rtcompile.files import fileset
from rtcompile.files.fileset import PACKED_FIELDS, FileSet
from rtcompile.files.headers import Header
from rtcompile.settings import Settings

OWN, TOOLKIT = "own/a.h", "toolkit/b.h"


@pytest.fixture(autouse=True)
def nothing_remembered() -> None:
    fileset._recently_validated.clear()


@pytest.fixture
def files(tmp_path: Path) -> FileSet:
    """A header of the user and one of the toolkit, each with an absent and a present path."""
    for name in (OWN, TOOLKIT, "own/there.h", "toolkit/folder/inside"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"text of {name}")
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
    (root / name).write_text("another text, longer than the one before")


def an_edit(root: Path) -> None:
    edit(root, OWN)


def an_edit_of_the_toolkit(root: Path) -> None:
    edit(root, TOOLKIT)


def a_removal(root: Path) -> None:
    (root / OWN).unlink()


def a_header_becomes_a_folder(root: Path) -> None:
    (root / OWN).unlink()
    (root / OWN).mkdir()


def a_file_in_the_gap(root: Path) -> None:
    edit(root, "own/gap.h")


def a_folder_in_the_gap(root: Path) -> None:
    (root / "toolkit/gap").mkdir()


def a_dangling_link_gets_a_target(root: Path) -> None:
    (root / "target").write_text("")
    (root / "own/gap.h").symlink_to(root / "target")


def a_present_file_is_removed(root: Path) -> None:
    (root / "own/there.h").unlink()


def a_present_file_becomes_a_folder(root: Path) -> None:
    (root / "own/there.h").unlink()
    (root / "own/there.h").mkdir()


def a_present_folder_becomes_a_file(root: Path) -> None:
    (root / "toolkit/folder/inside").unlink()
    (root / "toolkit/folder").rmdir()
    (root / "toolkit/folder").write_text("")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (an_edit, "header {}/own/a.h changed"),
        (an_edit_of_the_toolkit, "header {}/toolkit/b.h changed"),
        (a_removal, "header {}/own/a.h is gone"),
        (a_header_becomes_a_folder, "header {}/own/a.h is gone"),
        (a_file_in_the_gap, "new file {}/own/gap.h comes first"),
        (a_folder_in_the_gap, "new file {}/toolkit/gap comes first"),
        (a_dangling_link_gets_a_target, "new file {}/own/gap.h comes first"),
        (a_present_file_is_removed, "{}/own/there.h is gone"),
        (a_present_file_becomes_a_folder, "{}/own/there.h is gone, or became a folder"),
        (a_present_folder_becomes_a_file, "{}/toolkit/folder is gone"),
    ],
)
@pytest.mark.parametrize("form", ["recorded", "packed", "unpacked"])
def test_each_change_is_noticed_by_stat_and_by_contents(
    files: FileSet, tmp_path: Path, form: str, change: Callable[[Path], None], expected: str
) -> None:
    if form != "recorded":
        fields = packed(files, tmp_path)
        files = FileSet.unpacked(fields) if form == "unpacked" else files
    assert files.is_unchanged()
    assert files.current() is files
    change(tmp_path)
    assert not files.is_unchanged()
    assert files.current() is None
    assert files.difference().startswith(expected.format(tmp_path))


def test_packed_fields_are_restored(files: FileSet, tmp_path: Path) -> None:
    fields = packed(files, tmp_path)
    assert len(fields) == PACKED_FIELDS
    restored = FileSet.unpacked(fields)
    assert restored == files
    assert hash(restored) == hash(files)
    assert restored.headers == files.headers
    assert restored.packed(()) == fields, "packed once"


def test_an_empty_set_is_empty_in_each_form() -> None:
    assert FileSet().is_empty
    assert FileSet.unpacked(FileSet().packed(("/toolkit/",))).is_empty
    assert FileSet().is_unchanged(recent=True)
    assert not FileSet(absent=("/no",)).is_empty


@pytest.mark.parametrize("missing", range(PACKED_FIELDS))
def test_fields_that_lack_something_are_rejected(
    files: FileSet, tmp_path: Path, missing: int
) -> None:
    fields = packed(files, tmp_path)
    with pytest.raises(ValueError, match="not the fields"):
        FileSet.unpacked(fields[:missing] + fields[missing + 1 :])
    if fields[missing] and missing in (1, 5):
        with pytest.raises(ValueError, match="not the fields"):
            FileSet.unpacked([*fields[:missing], fields[missing][:-8], *fields[missing + 1 :]])


def test_only_the_toolkits_files_are_trusted_for_a_second(
    files: FileSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fileset, "_RECENT_SECONDS", 60.0)
    fields = packed(files, tmp_path)
    another = FileSet.unpacked(fields)
    assert another.is_unchanged(recent=True)
    edit(tmp_path, TOOLKIT)
    assert FileSet.unpacked(fields).is_unchanged(recent=True)
    assert not another.is_unchanged()
    assert not another.is_unchanged(recent=True), "it was seen to have changed"


def test_an_edit_of_the_users_file_is_noticed_at_once(files: FileSet, tmp_path: Path) -> None:
    fields = packed(files, tmp_path)
    assert FileSet.unpacked(fields).is_unchanged(recent=True)
    edit(tmp_path, OWN)
    assert not FileSet.unpacked(fields).is_unchanged(recent=True)


# --- clocks --------------------------------------------------------------------------------------

SECOND = 10**9


def aged(mtime_ns: int, ctime_ns: int, label: str = "user0") -> Header:
    return Header("/home/me/x.h", label, "x.h", "", 1, mtime_ns, ctime_ns, 2)


@pytest.mark.parametrize(
    ("age_ns", "ticks_ns", "is_trusted"),
    [
        pytest.param(0, 1, False, id="within the file clock's tick"),
        pytest.param(4_000_001, 1, True, id="before the tick"),
        pytest.param(4_000_001, SECOND, False, id="within a whole second"),
        pytest.param(SECOND, SECOND, False, id="within FAT's two seconds"),
        pytest.param(4 * SECOND, SECOND, True, id="four whole seconds ago"),
        pytest.param(2_000_000, 1_000_000, False, id="within whole milliseconds"),
    ],
)
def test_times_are_trusted_once_the_file_system_s_clock_has_moved_on(
    tmp_path: Path, age_ns: int, ticks_ns: int, is_trusted: bool
) -> None:
    now = 1_700_000_000 * SECOND + 123_456_789
    changed = (now - age_ns) // ticks_ns * ticks_ns
    header = aged(changed - 60 * SECOND, changed)
    kept = fileset.trusted(header, os.stat(tmp_path).st_dev, now)
    assert kept == (header if is_trusted else header._replace(mtime_ns=0, ctime_ns=0))
    times = {"st_mtime_ns": header.mtime_ns, "st_ctime_ns": changed}
    status = os.stat_result((0,) * 10, times)
    assert (fileset.changed_ns(status) >= now) is not is_trusted


def test_files_of_an_image_with_equal_times_are_compared_by_contents(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = time.time_ns()
    squashed = aged(SECOND, SECOND)
    assert fileset.trusted(squashed, 0, now).ctime_ns == 0
    assert fileset.trusted(aged(SECOND, SECOND, "cudart"), 0, now).ctime_ns == SECOND

    other = aged(SECOND + 1, SECOND + 1)
    assert fileset.trusted(other, 77, now) == other
    monkeypatch.setattr(fileset, "image_devices", lambda: frozenset([77]))
    assert fileset.trusted(other, 77, now).ctime_ns == 0


@pytest.mark.needs_compiler
def test_the_toolkit_in_an_image_is_trusted_if_an_option_names_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CuPy names CuPy's and the toolkit's folders with -I, in every request under `install()`."""
    monkeypatch.setattr(fileset, "_is_in_image", lambda *given: True)
    own = tmp_path / "own.cuh"
    own.write_text("")
    toolchain = toolkit.current(Settings.from_environ())
    [folder] = {d.path for d in toolchain.search if d.label == "cudart"}
    code = rtcompile.compile(
        '#include <cuda_fp16.h>\n#include "own.cuh"\n__global__ void k() {}',
        options=(f"-I{folder}", f"-I{tmp_path}"),
        arch="sm_80",
    )
    trusted = {h.path: h.mtime_ns > 0 for h in code.build.headers if h.label.startswith("user")}
    assert trusted[str(own)] is False
    assert trusted[f"{folder}/cuda_fp16.h"] is True


@pytest.mark.parametrize(
    ("path", "label", "is_own"),
    [
        ("/home/me/x.h", "user0", True),
        ("/home/me/x.h", "", True),
        ("/opt/cuda/include/mma.h", "cudart", False),
        ("/home/me/site-packages/theirs/x.h", "headers:theirs", False),
        ("/usr/include/c++/12/vector", "", False),
    ],
)
def test_which_headers_belong_to_the_user(path: str, label: str, is_own: bool) -> None:
    assert Header(path, label, "x.h", "", 0, 0, 0).is_own is is_own


def test_images_are_known_by_the_table_of_mounts() -> None:
    lines = [
        "36 35 98:1 / /mnt1 rw,noatime master:1 - ext3 /dev/root rw,errors=continue",
        "37 35 7:1 / /with\\040space ro - squashfs /dev/loop1 ro",
        "38 35 7:2 / /erofs ro shared:3 master:2 - erofs /dev/loop2 ro",
        "39 35 0:51 / /container ro - fuse.squashfuse_ll squashfuse_ll ro",
        "40 35 0:52 / /remote rw - fuse.sshfs host: rw",
    ]
    assert {*fileset.images(lines)} == {os.makedev(7, 1), os.makedev(7, 2), os.makedev(0, 51)}
    assert isinstance(fileset.image_devices(), frozenset)


def test_contents_are_compared_where_times_are_not_trusted(files: FileSet, tmp_path: Path) -> None:
    timeless = tuple(header._replace(mtime_ns=0, ctime_ns=0) for header in files.headers)
    unknown = files.replaced(headers=timeless)
    assert not unknown.is_unchanged()
    fresh = unknown.refreshed()
    assert fresh is not None
    assert fresh.is_unchanged()
    edit(tmp_path, OWN)
    assert unknown.refreshed() is None


def test_equal_sets_have_the_same_files_and_the_same_cacheability(files):
    assert files == files.replaced(newest_ns=7)
    assert files != files.replaced(uncacheable="__TIME__")
    assert files != files.replaced(absent=(*files.absent, "/proc/nowhere"))


def test_a_header_whose_edit_was_reverted_is_unchanged(files, tmp_path):
    before = (tmp_path / OWN).read_text()
    edit(tmp_path, OWN)
    assert files.refreshed() is None
    (tmp_path / OWN).write_text(before)
    assert files.refreshed() is not None


def test_sets_of_many_files_are_unpacked(files, tmp_path):
    for label, header in zip((OWN, TOOLKIT), files.headers, strict=True):
        many = files.replaced(headers=(header,) * 100)
        assert FileSet.unpacked(packed(many, tmp_path)).headers == many.headers, label


def test_a_folder_is_listed_by_its_entries_but_for_ignored_ones(tmp_path):
    folder = tmp_path / "listed"
    (folder / "below").mkdir(parents=True)
    stated = fileset.listing(str(folder), ".o,.d")
    (folder / "ignored.d").touch()
    assert fileset.listing(str(folder), ".o,.d") == stated
    (folder / "below/deeper.h").touch()
    assert fileset.listing(str(folder), ".o,.d") == stated
    (folder / "a.h").touch()
    assert fileset.listing(str(folder), ".o,.d") != stated
