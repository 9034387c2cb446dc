"""Damaged, foreign and unusable files of a cache are misses; foreign ones are never touched."""

import errno
import os
import re
import subprocess
from pathlib import Path

import pytest

from rtcompile.errors import RtcompileWarning
from tests.key_inputs import add, make_key_inputs, open_store

# --- damage --------------------------------------------------------------------------------------


def stored(cache: Path, folder: str) -> Path:
    (path,) = (cache / folder).iterdir()
    return path


# `tests/trials/test_cache_faults.py` damages at random.
DAMAGES = {
    "emptied": lambda data: b"",
    "cut in the head": lambda data: data[:40],
    "last byte cut": lambda data: data[:-1],
    "byte appended": lambda data: data + b"\0",
    "bit flipped": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "a pickle": lambda data: b"\x80\x04" + data,
    "another schema": lambda data: re.sub(rb" \d\n", b" 0\n", data, count=1),
}


@pytest.mark.parametrize("folder", ["objects", "records"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_removed_and_built_again(cache, folder, damage):
    inputs = make_key_inputs(paths_matter=True)  # one file of records
    add(open_store(cache), inputs)
    path = stored(cache, folder)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert open_store(cache).find(inputs) is None
    assert not path.exists()
    add(open_store(cache), inputs)
    assert open_store(cache).find(inputs)


def test_a_missing_object_is_a_miss_with_a_reason(cache):
    inputs = make_key_inputs(paths_matter=True)
    add(open_store(cache), inputs)
    stored(cache, "objects").unlink()
    assert open_store(cache).find(inputs) is None
    assert open_store(cache).why(inputs) == "its object was evicted or damaged"


# --- storage that cannot be used -----------------------------------------------------------------


def no_space(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["write", "rename", "mkdir"])
def test_a_full_disk_costs_one_warning_and_no_build(cache, monkeypatch, call):
    kept = open_store(cache)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, no_space)
        with pytest.warns(RtcompileWarning, match="No space left"):
            add(kept, make_key_inputs())
        add(kept, make_key_inputs(source="another"))  # a second warning would be an error
        kept.maintain()
    for inputs in (make_key_inputs(), make_key_inputs(source="another")):
        found = kept.find(inputs)
        assert found.build.hit == "memory"
    assert not list(cache.rglob("*.tmp"))


def test_a_read_only_cache_is_read_and_costs_one_warning_when_something_is_built(
    cache, monkeypatch
):
    def read_only(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    add(open_store(cache))
    open_file = os.open
    for call in ("mkdir", "utime", "unlink", "rename", "write"):
        monkeypatch.setattr(os, call, read_only)
    monkeypatch.setattr(
        os,
        "open",
        lambda path, flags, *mode, dir_fd=None: (
            read_only() if flags & os.O_CREAT else open_file(path, flags, *mode, dir_fd=dir_fd)
        ),
    )
    kept = open_store(cache)
    assert kept.find(make_key_inputs())
    with pytest.warns(RtcompileWarning, match="Read-only file system"):
        add(kept, make_key_inputs(source="another"))
    assert kept.find(make_key_inputs(source="another"))


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a file or folder to another user; without root rights, pretend to be another user."""
    if os.geteuid() == 0:
        os.chown(path, 54321, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


@pytest.mark.parametrize("folder", ["", "objects", "toolchains"])
def test_another_user_s_cache_is_neither_read_nor_written(cache, monkeypatch, folder):
    add(open_store(cache))
    give_away(cache / folder, monkeypatch)
    with pytest.warns(RtcompileWarning, match="belongs to user"):
        kept = open_store(cache)
    assert kept.find(make_key_inputs()) is None
    add(kept)
    assert [found.build.hit for found in [kept.find(make_key_inputs())] if found] == ["memory"]


def test_a_folder_that_is_a_link_is_rejected(cache, tmp_path):
    add(open_store(cache))
    (cache / "objects").rename(tmp_path / "objects")
    (cache / "objects").symlink_to(tmp_path / "objects")
    with pytest.warns(RtcompileWarning, match="not a directory"):
        assert open_store(cache).find(make_key_inputs()) is None


def test_the_cache_is_private(cache):
    add(open_store(cache))
    open_store(cache).maintain()
    assert {path.stat().st_mode & 0o077 for path in [cache, *cache.iterdir()]} == {0}


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o777, 0o1777])
def test_the_mode_of_an_existing_folder_is_kept(cache, mode):
    cache.mkdir()
    cache.chmod(mode)
    add(open_store(cache))
    assert open_store(cache).find(make_key_inputs())
    assert cache.stat().st_mode & 0o7777 == mode
    assert {path.stat().st_mode & 0o7777 for path in cache.iterdir()} == {0o700}


def test_a_folder_that_others_can_write_to_is_rejected_and_unchanged(cache):
    add(open_store(cache))
    (cache / "objects").chmod(0o770)
    with pytest.warns(RtcompileWarning, match="objects can be written by others"):
        assert open_store(cache).find(make_key_inputs()) is None
    assert (cache / "objects").stat().st_mode & 0o777 == 0o770


SPOILS = {
    "given away": lambda path: os.chown(path, 54321, -1),
    "a second name": lambda path: os.link(path, path.parent.parent / "theirs"),
    "a link": lambda path: path.symlink_to(path.rename(path.parent.parent / "theirs")),
    "writable by others": lambda path: path.chmod(0o620),
    "a named pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a huge file": lambda path: os.truncate(path, 1 << 40),
}


@pytest.mark.parametrize("folder", ["objects", "records"])
@pytest.mark.parametrize("spoil", SPOILS)
def test_a_file_that_another_user_could_have_made_is_replaced(cache, folder, spoil):
    if spoil == "given away" and os.geteuid():
        pytest.skip("only root can give a file away")
    inputs = make_key_inputs(paths_matter=True)  # one file of records
    add(open_store(cache), inputs)
    SPOILS[spoil](stored(cache, folder))
    assert open_store(cache).find(inputs) is None
    add(open_store(cache), inputs)
    assert open_store(cache).find(inputs)


def test_a_folder_under_an_objects_path_is_reported_and_kept(cache):
    add(open_store(cache), make_key_inputs())
    path = stored(cache, "objects")
    path.unlink()
    (path / "somebody's").mkdir(parents=True)
    kept = open_store(cache)
    with pytest.warns(RtcompileWarning, match="is a folder, but must be a file"):
        add(kept, make_key_inputs())
    add(kept, make_key_inputs(source="another"))
    assert open_store(cache).find(make_key_inputs(source="another"))
    assert (path / "somebody's").exists()


def test_a_cache_in_memory_touches_no_disk(cache):
    kept = add(open_store(cache, on_disk=False))
    kept.keep_source("a.cu", "source")
    kept.maintain()
    assert kept.find(make_key_inputs())
    assert not cache.exists()


def test_a_cache_removed_under_a_process_is_made_again(cache):
    kept = add(open_store(cache))
    subprocess.run(["rm", "-rf", str(cache)], check=True)
    add(kept, make_key_inputs(source="another"))
    assert open_store(cache).find(make_key_inputs(source="another"))
