"""Folders that a build searched: a listing fixes their entries, and some are not the same for every process."""

import shutil

import pytest

from rtcompile.files import fileset
from rtcompile.files.fileset import FileSet


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
    assert files.refreshed() is files
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


@pytest.mark.parametrize("path", ["/proc/self/cwd/a.h", "/dev/fd/3/a.h", "/sys/kernel/a.h"])
def test_a_build_that_searched_a_volatile_folder_is_not_cached(tmp_path, path):
    assert fileset.volatile([f"{tmp_path}/b.h", f"{tmp_path}/proc/a.h"]) == ""
    assert fileset.volatile([f"{tmp_path}/b.h", path]) == (
        f"{path.rpartition('/')[0]} may mean another folder in another process or at another time"
    )
