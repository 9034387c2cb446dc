"""Folders that a build searched: a listing fixes their entries, and some are not the same for every process."""

import os
import shutil

import pytest

from rtcompile.files import fileset
from rtcompile.files.fileset import FileSet
from tests.tables import from_table


@pytest.fixture
def listed(tmp_path):
    folder = tmp_path / "listed"
    (folder / "below").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere.h").touch()
    (folder / "file.h").touch()
    (folder / "link.h").symlink_to("../elsewhere.h")
    (folder / "linked").symlink_to("../elsewhere")
    return folder


def linked(file):
    file.rename(file.parents[1] / "away.h")
    file.symlink_to("../away.h")


CHANGES = {
    "a new entry": lambda folder: (folder / "a.h").touch(),
    "a missing entry": lambda folder: (folder / "file.h").unlink(),
    "a link for a file": lambda folder: linked(folder / "file.h"),
    "a folder for a file": lambda folder: ((folder / "file.h").unlink(), (folder / "file.h").mkdir()),
    "a folder for a link": lambda folder: ((folder / "linked").unlink(), (folder / "linked").mkdir()),
    "a file for a link": lambda folder: ((folder / "link.h").unlink(), (folder / "link.h").touch()),
    "a file for the folder": lambda folder: (shutil.rmtree(folder), folder.touch()),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("ignored", ["", ".o,.d"])
def test_a_listed_folder_has_the_same_entries(listed, change, ignored):
    files = FileSet(present=(fileset.listing(str(listed), ignored),))
    assert files.is_unchanged()
    assert files.current() is files
    change(listed)
    assert not files.is_unchanged()
    assert files.difference() == (
        f"files were added to or removed from {listed}, which the compiler searched"
    )


def test_ignored_and_deeper_entries_change_no_listing(listed):
    stated = fileset.listing(str(listed), ".o,.d")
    (listed / "ignored.d").touch()
    (listed / "below/deeper.h").touch()
    assert fileset.listing(str(listed), ".o,.d") == stated
    assert FileSet(present=(stated,)).is_unchanged()


# --- folders that are different ones for another process, or later -----------------------------------


@from_table
def test_a_build_that_searched_a_volatile_folder_is_not_cached(tmp_path, path):
    for folder in ("-a", "zz", "deep/folder"):
        (tmp_path / folder).mkdir(parents=True)
    for folder in (".", "-a", "zz", "deep"):
        (tmp_path / folder / "link").symlink_to("/proc/self/cwd")
    (tmp_path / "relative").symlink_to("./zz/../zz")
    (tmp_path / "jump").symlink_to(tmp_path / "deep/folder")
    path = path.format(tmp_path)
    folder = path.rpartition("/")[0]
    assert fileset.volatile([f"{tmp_path}/b.h", path]) == (
        f"{folder} may mean another folder in another process or at another time"
    )


def test_other_links_and_folders_are_not_volatile(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/../folder")
    paths = ["link/a.h", "link/../a.h", "folder/a.h", "missing/folder/a.h", "proc/a.h"]
    assert fileset.volatile([f"{tmp_path}/{path}" for path in paths]) == ""


@pytest.mark.parametrize(("links", "is_volatile"), [(40, False), (41, True)])
def test_a_folder_behind_more_links_than_the_kernel_follows_is_volatile(
    tmp_path, links, is_volatile
):
    (tmp_path / "0").mkdir()
    for number in range(links):
        (tmp_path / str(number + 1)).symlink_to(str(number))
    assert os.access(tmp_path / str(links), os.F_OK) is not is_volatile
    assert bool(fileset.volatile([f"{tmp_path}/{links}/a.h"])) is is_volatile


def test_a_link_to_itself_is_volatile(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    assert fileset.volatile([f"{tmp_path}/loop/a.h"])


def test_replaced_folders_have_another_identity(tmp_path):
    folder = tmp_path / "above/folder"
    before = fileset.identities([str(folder), "relative"])
    assert {*before} == {str(folder), *map(str, folder.parents)}
    folder.mkdir(parents=True)
    made = fileset.identities([str(folder)])
    assert {path for path in made if made[path] != before[path]} == {
        str(folder),
        str(folder.parent),
    }
    assert fileset.identities([str(folder)]) == made
    (tmp_path / "above").rename(tmp_path / "away")
    folder.mkdir(parents=True)
    assert fileset.identities([str(folder)])[str(folder)] != made[str(folder)]
