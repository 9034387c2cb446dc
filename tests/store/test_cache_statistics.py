"""Tests of sizes, eviction and statistics: lost statistics cost no build."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from rtcompile.compilers import observed
from rtcompile.errors import RtcompileWarning
from rtcompile.files import headers as file_times
from rtcompile.request.key import KeyInputs
from rtcompile.store import folder as folders
from rtcompile.store import inventory
from rtcompile.store.folder import Folder
from rtcompile.store.store import Store
from tests.key_inputs import make_key_inputs, make_object, open_store


def build(kept: Store, source: str, code: bytes = b"code") -> KeyInputs:
    inputs = make_key_inputs(source=source)
    with kept.building(inputs):
        kept.add(inputs, make_object(code), observed.record((), ()))
    return inputs


def date_back(cache: Path, hours: float) -> None:
    """Set the times of files built or used just now back by some hours."""
    now = time.time()
    for folder in ("objects", "records"):
        for path in (cache / folder).iterdir():
            if now - path.stat().st_mtime < 600:
                os.utime(path, (now - 3600 * hours, now - 3600 * hours))


def bytes_in(cache: Path) -> int:
    folders = [cache / name for name in ("objects", "records")]
    return sum(path.stat().st_size for folder in folders for path in folder.iterdir())


# --- sizes and eviction ------------------------------------------------------------------------


def test_the_least_recently_used_is_evicted_first(cache):
    for source, hours in (("a", 4), ("b", 3), ("c", 2)):
        build(open_store(cache), source, b"x" * 30_000)
        date_back(cache, hours)
    kept = open_store(cache, size=80_000)
    assert kept.find(make_key_inputs(source="a")), "used now, so no longer the oldest"
    build(kept, "d", b"x" * 30_000)
    kept.maintain()
    assert bytes_in(cache) <= 80_000
    fresh = open_store(cache)
    assert [fresh.find(make_key_inputs(source=s)) is not None for s in "abcd"] == [
        True,
        False,
        False,
        True,
    ]


def test_eviction_does_not_wait_for_the_end_of_the_process(cache):
    kept = open_store(cache, size=50_000)
    for i in range(6):
        build(kept, str(i), b"x" * 20_000)
        assert bytes_in(cache) < 50_000 + 25_000
    assert bytes_in(cache) <= 50_000


@pytest.mark.takes_seconds
def test_processes_that_end_abruptly_respect_the_limit(cache):
    """Workers of multiprocessing, Dask and Ray may end without any exit handler."""
    for i in range(20):
        if (child := os.fork()) == 0:
            build(open_store(cache, size=100_000), str(i), b"x" * 20_000)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert bytes_in(cache) <= 100_000
    usage = open_store(cache).usage()
    assert usage.misses == 20


def test_the_limit_is_for_all_folders(cache):
    kept = open_store(cache, size=200_000)
    build(kept, "a")
    for kind in ("sources", "toolchains", "index", "records"):
        for i in range(4):
            (cache / kind / str(i)).write_bytes(b"x" * 30_000)
            os.utime(cache / kind / str(i), (i, i))
    usage = kept.usage()
    counted = [
        p for p in cache.rglob("*") if p.is_file() and p.parent.name not in ("locks", "statistics")
    ]
    assert usage is not None
    assert usage.size == sum(path.stat().st_size for path in counted) <= 200_000
    assert kept.find(make_key_inputs(source="a"))
    assert not list((cache / "sources").glob("0"))


@pytest.mark.parametrize("age", [0, 60, 3600])
def test_a_precompiled_header_never_evicts_kernels_in_use(cache, age):
    kept = open_store(cache, size=100_000)
    build(kept, "a", b"x" * 60_000)
    used = time.time() - age
    for suffix in ("pch", "record"):
        (cache / "pch" / f"p.{suffix}").write_bytes(b"x" * 20_000)
        os.utime(cache / "pch" / f"p.{suffix}", (used, used))
    kept.maintain()
    assert os.listdir(cache / "pch") == []
    assert open_store(cache).find(make_key_inputs(source="a"))


def test_kernels_unused_for_a_day_are_evicted_for_a_precompiled_header(cache):
    kept = open_store(cache, size=100_000)
    build(kept, "a", b"x" * 60_000)
    room = inventory.room_for_precompiled(Folder(str(cache)), 100_000)
    assert 0 < room < 30_000
    for path in (cache / "objects").iterdir():
        os.utime(path, (1, 1))
    assert inventory.room_for_precompiled(Folder(str(cache)), 100_000) > 60_000 + room - 1


def test_an_evicted_object_that_is_open_can_be_read(cache):
    kept = open_store(cache)
    build(kept, "a", b"x" * 10_000)
    (path,) = (cache / "objects").iterdir()
    with path.open("rb") as reader:
        assert kept.prune(0) > 10_000
        assert not path.exists()
        assert b"x" * 10_000 in reader.read()


def test_prune_removes_files_of_killed_processes(cache):
    kept = open_store(cache)
    build(kept, "a")
    new = cache / "objects" / ".new.tmp"
    new.touch()
    names = ("objects/.old.tmp", "pch/.a.pch-17", "pch/.d.record-17-0.tmp", "pch/.try-17-1")
    for name in names:
        (cache / name).touch()
        os.utime(cache / name, (1, 1))
    kept.prune()
    assert not any((cache / name).exists() for name in names)
    assert new.exists(), "its writer may be at work"
    assert kept.find(make_key_inputs(source="a"))


def test_prune_leaves_the_locks_of_builds_under_way(cache):
    kept = open_store(cache)
    with kept.building(make_key_inputs()):
        held = list((cache / "locks").iterdir())
        kept.prune()
        assert held
        assert list((cache / "locks").iterdir()) == held
        with open_store(cache).building(make_key_inputs(), waits=False) as left:
            assert left == 0.0


def test_clear_keeps_only_reproducers_and_locks(cache):
    kept = open_store(cache)
    inputs = build(kept, "a")
    kept.keep_source("a.cu", "source")
    for folder in ("toolchains", "pch", "reproducers"):
        (cache / folder / "file").write_text("")
    kept.maintain()
    kept.clear()
    assert kept.find(inputs) is None
    left = {path.relative_to(cache).parts[0] for path in cache.rglob("*") if path.is_file()}
    assert left == {"reproducers", "locks"}  # a build may hold a lock


def test_entries_describe_themselves(cache):
    build(open_store(cache), "a", b"the code")
    (entry,) = open_store(cache).entries()
    assert (entry.name, entry.obj.code) == ("kernel.cu", b"the code")
    assert entry.size == (cache / "objects" / entry.key).stat().st_size


# --- statistics --------------------------------------------------------------------------------


def test_hits_and_misses_are_counted(cache):
    kept = open_store(cache)
    inputs = build(kept, "a")
    for _ in range(3):
        kept.find(inputs)
    kept.find(make_key_inputs(source="never built"))
    usage = kept.usage()
    assert (usage.hits, usage.misses) == (3, 1)


def test_the_journal_is_not_summed_up_while_a_slow_process_writes_to_it(cache, monkeypatch):
    build(open_store(cache), "a")
    folder, write = Folder(str(cache)), os.write
    opened = threading.Event()

    def write_late(descriptor: int, data: bytes) -> int:
        opened.set()
        time.sleep(0.2)
        return write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write_late)
        patch.setattr(folders, "_MOST_WAITED_SECONDS", 60.0)
        writer = threading.Thread(target=lambda: Folder(str(cache)).log({"misses": 7}))
        writer.start()
        opened.wait()
        assert folder.sum_up({})["misses"] == 1 + 7
        writer.join()


# --- loss and damage ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="emptied"),
        pytest.param(lambda data: b"\x80\x05cos\nsystem\n" * 1000, id="overwritten"),
        pytest.param(lambda data: data[:5], id="truncated"),
        pytest.param(
            lambda data: data + b"\nnan hits\n9e999 misses\nmany hits\n7", id="no numbers"
        ),
        pytest.param(None, id="lost"),
    ],
)
def test_damaged_statistics_lose_counts_and_no_build(cache, damage):
    kept = open_store(cache)
    inputs = build(kept, "a", b"x" * 1000)
    kept.maintain()
    journal = cache / "statistics" / "journal"
    if callable(damage):
        journal.write_bytes(damage(journal.read_bytes()))
    else:
        journal.unlink()
    later = open_store(cache)
    build(later, "b")
    usage = later.usage()
    assert usage.size == bytes_in(cache) > 1000
    assert usage.misses in (1, 2)
    assert later.find(inputs)


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_statistics_that_cannot_be_written_are_one_warning_and_no_wait(cache, make):
    (cache / "statistics").mkdir(parents=True)
    for folder in (cache, cache / "statistics"):
        folder.chmod(0o700)
    make(cache / "statistics" / "journal")
    signal.alarm(60)  # instead of waiting for ever
    kept = open_store(cache, size=50_000)
    for i in range(6):
        file_times.next_tick()  # the least recently used files are evicted
        inputs = build(kept, str(i), b"x" * 20_000)
    with pytest.warns(RtcompileWarning, match="statistics cannot be written"):
        assert kept.usage() is None
    assert kept.usage() is None
    assert open_store(cache).find(inputs)
    assert bytes_in(cache) <= 50_000
    signal.alarm(0)


def test_a_process_that_is_killed_while_it_sums_up_loses_no_build(cache):
    kept = open_store(cache)
    inputs = build(kept, "a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "truncate", signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            kept.maintain()
    usage = open_store(cache).usage()
    assert usage.misses >= 1
    assert open_store(cache).find(inputs)


def test_counts_of_many_builds_and_stores_add_up(cache):
    """The journal is summed up when it has grown; unreadable records are skipped."""
    kept = open_store(cache)
    build(kept, "a")
    folder = Folder(str(cache))
    for n in range(1999):
        kept._wrote(1, misses=1)
        if n % 100 == 0:
            folder.log({"hits redis://a b": 2, "seconds_waited redis://a b": 0.25})
    assert (cache / "statistics" / "journal").stat().st_size < 33_000
    with (cache / "statistics" / "journal").open("ab") as journal:
        journal.write(b"\xff\n1e misses\n7")
    usage = kept.usage()
    assert usage.misses == 2000
    assert usage.stores == {"redis://a b": {"hits": 40.0, "seconds_waited": 5.0}}
    assert (cache / "statistics" / "journal").stat().st_size < 200


def test_counts_of_a_folder_that_may_not_be_written_wait_for_no_end(cache, monkeypatch):
    ends = []
    monkeypatch.setattr(folders, "at_end", ends.append)
    monkeypatch.setattr(folders, "_unlogged", {})
    for _ in range(3):
        folders.count(Folder(str(cache), writable=False), hits=1)
    assert not ends
    for _ in range(3):
        folders.count(Folder(str(cache)), hits=1)
    assert len(ends) == 1
    assert folders.take_counts(str(cache)) == {"hits": 3}
