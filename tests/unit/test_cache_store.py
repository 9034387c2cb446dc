"""The store: finds what was built, and only that; no storage's fault costs a build."""

from __future__ import annotations

import ast
import errno
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from rtcompile.cache import headers, locks, manifests, memory
from rtcompile.cache.store import Store
from rtcompile.core.arch import Arch
from rtcompile.core.key import Question
from rtcompile.core.request import ObjectCode, SearchDir
from rtcompile.errors import CompileError, CompilerCrashed, RtcompileWarning
from rtcompile.settings import Settings
from tests.questions import Place, make_object, make_question


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path / "here", "user0", "cudart")
    place.write("user0/a.h", "one")
    place.write("cudart/b.h", "toolkit")
    return place


def open_store(cache: Path, *, on_disk: bool = True) -> Store:
    """Return a store as a new process would have it: nothing in memory."""
    return Store(str(cache), on_disk=on_disk, size=1 << 30)


def add(kept: Store, question: Question | None = None, obj: ObjectCode | None = None) -> Store:
    """Build a question that reads no header."""
    asked = question or make_question()
    with kept.building(asked):
        kept.add(asked, obj or make_object(), headers.record((), ()))
    return kept


# --- found ---------------------------------------------------------------------------------------


def test_what_was_added_is_found_whole_by_another_process(cache: Path, place: Place) -> None:
    question = place.question()
    obj = make_object(b"\0\xffcode", lowered_names={"f<int>": "_Z1f", "ü": "_Z2u"})
    with (first := open_store(cache)).building(question):
        first.add(question, obj, place.record("user0/a.h"))
    found = open_store(cache).find(question)
    assert found is not None
    assert (found.code, found.kind, found.arch) == (obj.code, "cubin", Arch(9, 0, "a"))
    assert dict(found.lowered_names) == {"f<int>": "_Z1f", "ü": "_Z2u"}
    assert (found.build.log, found.build.compiler) == ("a warning", "nvrtc 12.9.86")
    assert found.build.hit == "disk"
    assert [header.path for header in found.build.headers] == [place.path("user0/a.h")]


def test_a_second_time_it_is_found_in_memory(cache: Path) -> None:
    add(open_store(cache))
    later = open_store(cache)
    hits = [later.find(make_question()) for _ in range(2)]
    assert [hit.build.hit for hit in hits if hit] == ["disk", "memory"]


def test_a_process_has_one_store_per_directory(cache: Path) -> None:
    settings = Settings(cache_dir=str(cache))
    assert Store.open(settings) is Store.open(settings)


def test_what_auto_had_built_serves_auto_whichever_compiler_it_was(cache: Path) -> None:
    add(open_store(cache), make_question(), make_object(backend="nvcc"))
    assert open_store(cache).find(make_question(backend="auto"))
    for asked in ("nvrtc", "nvcc"):
        assert open_store(cache).find(make_question(backend=asked)) is None


def test_what_nvcc_was_told_to_build_does_not_become_what_auto_gives(cache: Path) -> None:
    add(open_store(cache), make_question(backend="nvcc"), make_object(backend="nvcc"))
    assert open_store(cache).find(make_question(backend="nvcc"))
    assert open_store(cache).find(make_question(backend="auto")) is None


def test_an_upgraded_compiler_builds_again(cache: Path) -> None:
    add(open_store(cache))
    upgraded = make_question(compilers={"nvrtc": "13.0.88", "nvcc": "13.0.88"})
    assert open_store(cache).find(upgraded) is None
    assert "12.9.86" in open_store(cache).why(upgraded)


# --- headers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_an_edited_header_is_a_miss_and_its_revert_a_hit(
    cache: Path, place: Place, tier: str
) -> None:
    question = place.question()
    kept = open_store(cache)

    def now() -> Store:
        return kept if tier == "memory" else open_store(cache)

    place.build(now(), question, "user0/a.h", code=b"of one")
    place.write("user0/a.h", "two")
    assert now().find(question) is None
    assert now().why(question) == f"header {place.path('user0/a.h')} changed"
    place.build(now(), question, "user0/a.h", code=b"of two")
    assert [found.code for found in [now().find(question)] if found] == [b"of two"]
    place.write("user0/a.h", "one")
    assert [found.code for found in [now().find(question)] if found] == [b"of one"]


def test_a_touched_header_is_a_hit_and_is_read_only_once(
    cache: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    question = place.question()
    place.build(open_store(cache), question, "user0/a.h")
    os.utime(place.path("user0/a.h"), ns=(1, 1))
    headers.next_tick()
    assert open_store(cache).find(question)
    monkeypatch.setattr(headers, "_contents", lambda path: pytest.fail(f"{path} was read again"))
    assert open_store(cache).find(question)


def test_a_new_header_that_comes_first_is_a_miss(cache: Path, place: Place) -> None:
    question = place.question()
    place.build(open_store(cache), question, "cudart/b.h")
    new = place.write("user0/b.h", "shadow")
    assert open_store(cache).find(question) is None
    assert open_store(cache).why(question).startswith(f"new file {new}")


def test_a_header_that_changes_while_the_compiler_runs_is_not_cached(
    cache: Path, place: Place
) -> None:
    question = place.question()
    building = open_store(cache)
    with building.building(question):
        place.write("user0/a.h", "edited meanwhile")
        assert not building.add(question, make_object(), place.record("user0/a.h"))
    assert building.find(question) is None


def test_a_header_written_just_before_the_build_is_cached(cache: Path, place: Place) -> None:
    question = place.question()
    for text in ("a", "b", "c", "d"):
        place.write("user0/a.h", text)
        assert place.build(open_store(cache), question, "user0/a.h", code=text.encode())
        assert open_store(cache).find(question)


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(make_question(source="auto t = __TIME__;"), id="clock in the source"),
        pytest.param(make_question(options=(("D", "T=__DATE__"),)), id="clock in an option"),
        pytest.param(
            make_question(options=(("D", "H=__has_include"),)), id="question in an option"
        ),
    ],
)
def test_what_hangs_on_more_than_files_is_not_cached(cache: Path, question: Question) -> None:
    kept = add(open_store(cache), question)
    assert kept.find(question) is None
    assert kept.why(question).startswith("never cached")


# --- another place -------------------------------------------------------------------------------


def moved(tmp_path: Path) -> Place:
    """The same contents elsewhere, as in another virtual environment."""
    other = Place(tmp_path / "there" / "deeper", "user0", "cudart")
    other.write("user0/a.h", "one")
    other.write("cudart/b.h", "toolkit")
    return other


def test_the_same_contents_at_another_place_are_a_hit(
    cache: Path, place: Place, tmp_path: Path
) -> None:
    place.build(open_store(cache), place.question(), "user0/a.h", "cudart/b.h", code=b"shared")
    other = moved(tmp_path)
    found = open_store(cache).find(other.question())
    assert found is not None
    assert found.code == b"shared"
    assert {header.path for header in found.build.headers} == {
        other.path("user0/a.h"),
        other.path("cudart/b.h"),
    }
    other.write("user0/a.h", "two")
    assert open_store(cache).find(other.question()) is None
    assert open_store(cache).find(place.question())


@pytest.mark.parametrize(
    ("header", "changes", "code"),
    [
        pytest.param("", {"paths_matter": True}, b"", id="line info"),
        pytest.param("", {"source": "__FILE__"}, b"", id="__FILE__ in the source"),
        pytest.param("f(__FILE__);", {}, b"", id="__FILE__ in the user's header"),
        pytest.param("", {}, b"...{here}/cudart/b.h...", id="a path in the code"),
        pytest.param("", {"options": (("D", "F=__FILE__"),)}, b"", id="__FILE__ in an option"),
    ],
)
def test_a_build_that_holds_a_path_is_its_place_s_alone(
    cache: Path,
    place: Place,
    tmp_path: Path,
    header: str,
    changes: dict[str, object],
    code: bytes,
) -> None:
    for here in (place, other := moved(tmp_path)):
        here.write("user0/a.h", header)
    code = code.replace(b"{here}", os.fsencode(place.root))
    place.build(open_store(cache), place.question(**changes), "user0/a.h", code=code)
    assert open_store(cache).find(place.question(**changes))
    assert open_store(cache).find(other.question(**changes)) is None


@pytest.mark.parametrize(("kind", "bound"), [("cubin", False), ("ptx", False), ("ltoir", True)])
def test_a_toolkit_header_s_assertion_binds_only_code_that_cannot_be_searched(
    cache: Path, place: Place, tmp_path: Path, kind: str, bound: bool
) -> None:
    for here in (place, other := moved(tmp_path)):
        here.write("cudart/b.h", "#define CHECK(x) fail(__FILE__)")
    question = place.question()
    with (kept := open_store(cache)).building(question):
        kept.add(question, make_object(kind=kind), place.record("cudart/b.h"))
    assert (open_store(cache).find(other.question()) is None) is bound


def test_a_header_outside_the_search_binds_the_build_to_its_place(
    cache: Path, place: Place, tmp_path: Path
) -> None:
    absolute = place.write("elsewhere/x.h", "")
    place.build(open_store(cache), place.question(), absolute)
    assert open_store(cache).find(place.question())
    assert open_store(cache).find(moved(tmp_path).question()) is None


def test_a_shadow_at_the_other_place_is_noticed(cache: Path, place: Place, tmp_path: Path) -> None:
    place.build(open_store(cache), place.question(), "cudart/b.h")
    other = moved(tmp_path)
    other.write("user0/b.h", "shadow")
    assert open_store(cache).find(other.question()) is None


def test_what_has_include_found_makes_another_object(cache: Path, place: Place) -> None:
    question = place.question(source="#if __has_include(<opt.h>)\n#endif")
    place.build(open_store(cache), question, code=b"without")
    place.write("user0/opt.h", "")
    place.build(open_store(cache), question, code=b"with")
    os.unlink(place.path("user0/opt.h"))
    assert [found.code for found in [open_store(cache).find(question)] if found] == [b"without"]


def test_an_export_is_a_cache_for_another_machine(
    cache: Path, place: Place, tmp_path: Path
) -> None:
    kept = open_store(cache)
    place.build(kept, place.question(), "user0/a.h", code=b"shipped")
    assert kept.export(str(tmp_path / "shipped")) == 3
    found = open_store(tmp_path / "shipped").find(moved(tmp_path).question())
    assert found is not None
    assert found.code == b"shipped"


# --- damage --------------------------------------------------------------------------------------


def stored(cache: Path, folder: str) -> Path:
    (path,) = (cache / folder).iterdir()
    return path


@pytest.mark.parametrize("folder", ["objects", "manifests"])
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda data: b"", id="emptied"),
        pytest.param(lambda data: data[:40], id="cut in the head"),
        pytest.param(lambda data: data[:-1], id="last byte cut"),
        pytest.param(lambda data: data + b"\0", id="byte appended"),
        pytest.param(lambda data: data[:-1] + bytes([data[-1] ^ 1]), id="bit flipped"),
        pytest.param(lambda data: b"\x80\x04" + data, id="a pickle"),
        pytest.param(lambda data: data.replace(b" 3\n", b" 9\n", 1), id="another schema"),
    ],
)
def test_a_damaged_file_is_a_miss_removed_and_built_again(
    cache: Path, folder: str, damage: Callable[[bytes], bytes]
) -> None:
    question = make_question(paths_matter=True)  # one manifest
    add(open_store(cache), question)
    path = stored(cache, folder)
    path.write_bytes(damage(path.read_bytes()))
    assert open_store(cache).find(question) is None
    assert not path.exists()
    add(open_store(cache), question)
    assert open_store(cache).find(question)


def test_a_missing_object_is_a_miss_that_says_so(cache: Path) -> None:
    add(open_store(cache))
    stored(cache, "objects").unlink()
    assert open_store(cache).find(make_question()) is None
    assert open_store(cache).why(make_question()) == "its object was evicted or damaged"


def test_verify_removes_what_is_damaged_and_names_it(cache: Path) -> None:
    add(open_store(cache))
    path = stored(cache, "objects")
    path.write_bytes(path.read_bytes()[:-1])
    assert open_store(cache).verify() == [str(path)]
    assert open_store(cache).verify() == []
    assert not path.exists()


# --- storage that cannot be used -----------------------------------------------------------------


def no_space(*_: object, **__: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["write", "rename", "mkdir"])
def test_a_full_disk_costs_one_warning_and_no_build(
    cache: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    kept = open_store(cache)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, no_space)
        with pytest.warns(RtcompileWarning, match="No space left"):
            add(kept, make_question())
        add(kept, make_question(source="another"))  # a second warning would be an error
        kept.settle()
    for question in (make_question(), make_question(source="another")):
        found = kept.find(question)
        assert found is not None
        assert found.build.hit == "memory"
    assert not list(cache.rglob("*.tmp"))


def test_a_cache_that_cannot_be_made_costs_one_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = open_store(tmp_path / "file" / "cache")
    with pytest.warns(RtcompileWarning, match="RTCOMPILE_CACHE_DIR"):
        add(kept)
    assert kept.find(make_question())


def test_a_read_only_cache_is_read_and_costs_one_warning_when_something_is_built(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert kept.find(make_question())
    with pytest.warns(RtcompileWarning, match="Read-only file system"):
        add(kept, make_question(source="another"))
    assert kept.find(make_question(source="another"))


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a file or folder another user's; who is not root becomes another user instead."""
    if os.geteuid() == 0:
        os.chown(path, 54321, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


@pytest.mark.parametrize("folder", ["", "objects", "toolchains"])
def test_another_user_s_cache_is_neither_read_nor_written(
    cache: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    add(open_store(cache))
    give_away(cache / folder, monkeypatch)
    with pytest.warns(RtcompileWarning, match="belongs to user"):
        kept = open_store(cache)
    assert kept.find(make_question()) is None
    add(kept)
    assert [found.build.hit for found in [kept.find(make_question())] if found] == ["memory"]


def test_a_folder_that_is_a_link_is_refused(cache: Path, tmp_path: Path) -> None:
    add(open_store(cache))
    (cache / "objects").rename(tmp_path / "objects")
    (cache / "objects").symlink_to(tmp_path / "objects")
    with pytest.warns(RtcompileWarning, match="not a directory"):
        assert open_store(cache).find(make_question()) is None


def test_the_cache_is_private(cache: Path) -> None:
    add(open_store(cache))
    open_store(cache).settle()
    assert {path.stat().st_mode & 0o077 for path in [cache, *cache.iterdir()]} == {0}


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o777, 0o1777])
def test_the_mode_of_a_folder_that_was_there_is_the_user_s(cache: Path, mode: int) -> None:
    cache.mkdir()
    cache.chmod(mode)
    add(open_store(cache))
    assert open_store(cache).find(make_question())
    assert cache.stat().st_mode & 0o7777 == mode
    assert {path.stat().st_mode & 0o7777 for path in cache.iterdir()} == {0o700}


def test_a_folder_in_which_others_can_write_is_refused_and_stays_as_it_is(cache: Path) -> None:
    add(open_store(cache))
    (cache / "objects").chmod(0o770)
    with pytest.warns(RtcompileWarning, match="objects can be written by others"):
        assert open_store(cache).find(make_question()) is None
    assert (cache / "objects").stat().st_mode & 0o777 == 0o770


def as_a_second_name(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.link(path, path.parent.parent / "theirs")


def as_a_link(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.rename(path, path.parent.parent / "theirs")
    os.symlink(path.parent.parent / "theirs", path)


def writable_by_others(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.chmod(0o620)


def as_a_named_pipe(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.unlink()
    os.mkfifo(path)


def as_a_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.unlink()
    path.mkdir()


def as_a_huge_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("folder", ["objects", "manifests"])
@pytest.mark.parametrize(
    "spoil",
    [
        give_away,
        as_a_second_name,
        as_a_link,
        writable_by_others,
        as_a_named_pipe,
        as_a_folder,
        as_a_huge_file,
    ],
)
def test_a_file_that_another_could_have_made_is_not_used_and_is_replaced(
    cache: Path, monkeypatch: pytest.MonkeyPatch, folder: str, spoil: Callable[..., None]
) -> None:
    question = make_question(paths_matter=True)  # one manifest
    add(open_store(cache), question)
    path = stored(cache, folder)
    with monkeypatch.context() as patch:
        if spoil is give_away and os.geteuid():
            pytest.skip("only root can give a file away")
        spoil(path, patch)
        assert open_store(cache).find(question) is None
    add(open_store(cache), question)
    assert open_store(cache).find(question)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
@pytest.mark.parametrize("name", ["notes", "cache.db", "refusals"])
@pytest.mark.filterwarnings("ignore::rtcompile.errors.RtcompileWarning")
def test_what_is_no_file_among_the_books_costs_no_build_and_no_wait(
    cache: Path, make: Callable[[Path], None], name: str
) -> None:
    add(open_store(cache))
    path = cache / "books" / name
    path.unlink(missing_ok=True)
    make(path)
    signal.alarm(20)
    try:
        kept = open_store(cache)
        kept.refusal(make_question())
        kept.remember_refusal(make_question(), "no")
        add(kept, make_question(source="another"))
        kept.usage()
    finally:
        signal.alarm(0)
    assert open_store(cache).find(make_question(source="another"))


def test_a_folder_with_files_in_an_object_s_place_is_said_and_left(cache: Path) -> None:
    add(open_store(cache), make_question())
    path = stored(cache, "objects")
    path.unlink()
    (path / "somebody's").mkdir(parents=True)
    kept = open_store(cache)
    with pytest.warns(RtcompileWarning, match="is a folder, where a file is to be kept"):
        add(kept, make_question())
    add(kept, make_question(source="another"))
    assert open_store(cache).find(make_question(source="another"))
    assert (path / "somebody's").exists()


@pytest.mark.parametrize("folder", ["objects", "manifests"])
def test_a_file_under_another_one_s_key_is_a_miss_and_verify_finds_it(
    cache: Path, folder: str
) -> None:
    first, second = make_question(paths_matter=True), make_question(paths_matter=True, source="2")
    for question in (first, second):
        add(open_store(cache), question, make_object(question.source.encode()))
    a, b = (cache / folder).iterdir()
    data = a.read_bytes(), b.read_bytes()
    a.write_bytes(data[1])
    b.write_bytes(data[0])
    reader = Store(str(cache), on_disk=True, size=1 << 30, writable=False)
    assert [reader.find(question) for question in (first, second)] == [None, None]
    assert sorted(open_store(cache).verify()) == sorted(map(str, (a, b)))


def test_where_compiling_is_forbidden_nothing_is_written(cache: Path, place: Place) -> None:
    question = place.question()
    place.build(open_store(cache), question, "user0/a.h")
    for path in cache.rglob("*"):
        os.utime(path, (1, 1))
    os.utime(place.path("user0/a.h"))  # a hit by content, which is noted elsewhere

    def state() -> set[tuple[str, int]]:
        return {(str(path), path.stat().st_mtime_ns) for path in cache.rglob("*")}

    before = state()
    kept = Store.open(Settings(cache_dir=str(cache), jit=False))
    assert kept.find(question)
    kept.note_hits()
    kept.settle()
    assert state() == before


def test_a_cache_in_memory_touches_no_disk(cache: Path) -> None:
    kept = add(open_store(cache, on_disk=False))
    kept.keep_source("a.cu", "source")
    kept.settle()
    assert kept.find(make_question())
    assert not cache.exists()


def test_a_cache_removed_under_a_process_is_made_again(cache: Path) -> None:
    kept = add(open_store(cache))
    subprocess.run(["rm", "-rf", str(cache)], check=True)
    add(kept, make_question(source="another"))
    assert open_store(cache).find(make_question(source="another"))


# --- one builder ---------------------------------------------------------------------------------


def test_of_many_threads_one_builds(cache: Path) -> None:
    kept = open_store(cache)
    question = make_question()
    builds = []
    start = threading.Barrier(8)

    def ask() -> None:
        start.wait()
        with kept.building(question):
            if kept.find(question) is None:
                builds.append(threading.get_ident())
                kept.add(question, make_object(), headers.record((), ()))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1


@pytest.mark.parametrize(
    ("error", "builds"),
    [
        pytest.param(CompileError("no"), 1, id="a refusal is everybody's"),
        pytest.param(CompilerCrashed("gone"), 2, id="after a crash the next one tries"),
        pytest.param(KeyboardInterrupt(), 2, id="after an interrupt the next one tries"),
    ],
)
def test_who_waits_for_a_build_that_fails(cache: Path, error: BaseException, builds: int) -> None:
    kept = open_store(cache)
    inside, tries, seen = threading.Event(), [], []

    def ask() -> None:
        try:
            with kept.building(make_question()):
                tries.append(1)
                if len(tries) == 1:
                    inside.set()
                    while kept._flights._flights[make_question().lookup_key()].users < 2:
                        time.sleep(0.001)
                raise error
        except BaseException as caught:
            seen.append(caught)

    first = threading.Thread(target=ask)
    first.start()
    inside.wait()
    second = threading.Thread(target=ask)
    second.start()
    first.join()
    second.join()
    assert len(tries) == builds
    assert [type(caught) for caught in seen] == [type(error)] * 2


def test_a_failure_does_not_outlive_those_who_waited_for_it(cache: Path) -> None:
    kept = open_store(cache)
    with pytest.raises(CompileError), kept.building(make_question()):
        raise CompileError("no")
    with kept.building(make_question()):
        pass


HOLDER = """
import sys, os
from rtcompile.cache import locks
with locks.machine_wide(sys.argv[1]) as held:
    if "fork" in sys.argv and not os.fork():
        sys.stdin.read()
        os._exit(0)
    print(held, flush=True)
    sys.stdin.read()
"""


def holder(path: Path, *, fork: bool = False) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), "fork" if fork else ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def test_a_process_waits_for_another_until_its_patience_ends(tmp_path: Path) -> None:
    with holder(tmp_path / "lock") as other:
        with locks.machine_wide(str(tmp_path / "lock"), patience=0.0) as held:
            assert not held
        other.communicate()
    with locks.machine_wide(str(tmp_path / "lock"), patience=0.0) as held:
        assert held


def test_a_killed_holder_frees_its_lock(tmp_path: Path) -> None:
    with holder(tmp_path / "lock") as other:
        other.kill()
        other.wait()
        with locks.machine_wide(str(tmp_path / "lock"), patience=10.0) as held:
            assert held


def test_a_forked_child_does_not_keep_a_killed_holder_s_lock(tmp_path: Path) -> None:
    with holder(tmp_path / "lock", fork=True) as other:
        other.kill()
        os.waitpid(other.pid, 0)
        other.returncode = -9
        with locks.machine_wide(str(tmp_path / "lock"), patience=10.0) as held:
            assert held


def test_a_lock_leaves_no_file(cache: Path) -> None:
    add(open_store(cache))
    assert not list((cache / "locks").iterdir())


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_storage_without_locks_builds_without(
    cache: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(locks.fcntl, "flock", no_locks)
    add(open_store(cache))
    assert open_store(cache).find(make_question())


def test_a_forked_child_has_a_store_of_its_own(cache: Path) -> None:
    """A thread of the parent may hold the store's locks; it is not in the child to let go."""
    settings = Settings(cache_dir=str(cache))
    kept = Store.open(settings)
    with kept._guard, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # where it would wait for ever
            try:
                add(Store.open(settings))
                os._exit(0 if Store.open(settings).find(make_question()) else 1)
            except BaseException:
                os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- bounds, and what a hit costs ----------------------------------------------------------------


def test_a_manifest_keeps_the_latest_builds(cache: Path, place: Place) -> None:
    question = place.question()
    texts = [str(i) for i in range(manifests.MOST_BUILDS + 1)]
    for text in texts:
        place.write("user0/a.h", text)
        place.build(open_store(cache), question, "user0/a.h", code=text.encode())
    found = []
    for text in texts:
        place.write("user0/a.h", text)
        found.append(open_store(cache).find(question) is not None)
    assert found == [False, *[True] * manifests.MOST_BUILDS]


def test_memory_is_bounded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_MOST_BYTES", 250)
    kept = open_store(cache, on_disk=False)
    questions = [make_question(source=str(i)) for i in range(4)]
    for question in questions:
        add(kept, question, make_object(b"x" * 100))
    assert [kept.find(q) is not None for q in questions] == [False, False, True, True]


def test_a_hit_loads_no_database_and_no_openssl(cache: Path) -> None:
    add(open_store(cache))
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "from rtcompile.cache.store import Store\n"
        "from tests.questions import make_question\n"
        f"store = Store({str(cache)!r}, on_disk=True, size=1 << 30)\n"
        "assert store.find(make_question()).build.hit == 'disk'\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout
    loaded = set(ast.literal_eval(output))
    heavy = {"diskcache", "sqlite3", "json", "pickle", "_hashlib", "subprocess", "tempfile"}
    ours = {"core.mentions", "core.units", "cache.books", "cache.locks"}
    assert not loaded & {*heavy, *(f"rtcompile.{name}" for name in ours)}


def test_search_directories_may_have_equal_labels(cache: Path, tmp_path: Path) -> None:
    here = Place(tmp_path / "here", "one", "two")
    search = tuple(SearchDir("cccl", directory.path) for directory in here.search)
    here.write("two/x.h", "")
    question = here.question(search=search)
    here.build(open_store(cache), question, "two/x.h")
    found = open_store(cache).find(question)
    assert found is not None
    assert found.build.headers[0].path == here.path("two/x.h")
