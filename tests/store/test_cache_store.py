"""Tests of the store: it finds exactly what was built, and faults of the storage cost no build."""

import os
import shutil
import time
from functools import partial
from pathlib import Path

import pytest

from rtcompile.files import headers as file_times
from rtcompile.files.headers import SearchDir
from rtcompile.request.object_code import MOST_LISTED
from rtcompile.request.values import Arch
from rtcompile.settings import Settings
from rtcompile.store import folder
from rtcompile.store.folder import Folder
from rtcompile.store.store import Store
from tests.jobs import at_once
from tests.key_inputs import HeaderTree, add, make_key_inputs, make_object, open_store
from tests.tables import from_table

# --- found ---------------------------------------------------------------------------------------


def test_an_added_build_is_found_by_another_process(cache, tree):
    inputs = tree.key_inputs()
    obj = make_object(b"\0\xffcode", lowered_names={"f<int>": "_Z1f", "ü": "_Z2u"})
    with (first := open_store(cache)).building(inputs):
        first.add(inputs, obj, tree.record("user0/a.h"))
    found = open_store(cache).find(inputs)
    assert (found.code, found.kind, found.arch) == (obj.code, "cubin", Arch(9, 0, "a"))
    assert dict(found.lowered_names) == {"f<int>": "_Z1f", "ü": "_Z2u"}
    assert (found.build.log, found.build.compiler) == ("a warning", "nvrtc 12.9.86")
    assert found.build.hit == "disk"
    assert [header.path for header in found.build.headers] == [tree.path("user0/a.h")]


def test_a_process_has_one_store_per_directory(cache):
    settings = Settings(cache_dir=str(cache))
    assert Store.open(settings) is Store.open(settings)


def test_code_built_for_auto_serves_auto_with_either_compiler(cache):
    add(open_store(cache), make_key_inputs(), make_object(backend="nvcc"))
    assert open_store(cache).find(make_key_inputs(backend="auto"))
    for backend in ("nvrtc", "nvcc"):
        assert open_store(cache).find(make_key_inputs(backend=backend)) is None


def test_code_requested_from_nvcc_does_not_serve_auto(cache):
    add(open_store(cache), make_key_inputs(backend="nvcc"), make_object(backend="nvcc"))
    assert open_store(cache).find(make_key_inputs(backend="nvcc"))
    assert open_store(cache).find(make_key_inputs(backend="auto")) is None


def test_an_upgraded_compiler_builds_again(cache):
    compilers = {"nvrtc": "13.0.88", "nvcc": "13.0.88"}
    for more in ({}, {"paths_matter": True}):
        add(open_store(cache), make_key_inputs(**more))
        upgraded = make_key_inputs(**more, compilers=compilers)
        assert open_store(cache).find(upgraded) is None
    assert "built by nvrtc (12.9.86 " in open_store(cache).why(upgraded)


def test_a_build_that_read_no_file_is_one_file(cache):
    add(open_store(cache))
    kinds = ("objects", "records")
    assert [len([*(cache / kind).iterdir()]) for kind in kinds] == [1, 0]
    assert open_store(cache).find(make_key_inputs())
    elsewhere = make_key_inputs(search=(SearchDir("user0", "/elsewhere"),), source="other")
    add(open_store(cache), elsewhere)
    moved = elsewhere._replace(search=(SearchDir("user0", "/moved"),))
    assert open_store(cache).find(moved)


@from_table
def test_a_build_whose_key_a_look_up_cannot_know_has_a_record(cache, changes):
    made = make_object(backend=changes.get("backend", "nvrtc"))
    add(open_store(cache), make_key_inputs(**changes), made)
    assert len([*(cache / "records").iterdir()]) == 1


def test_folders_that_versions_before_used_are_removed_once(cache, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").touch()
    for name in ("manifests", "negative", "mine"):
        (cache / name).mkdir(parents=True)
        (cache / name / "file").touch()
    (cache / "portable").symlink_to(elsewhere)
    add(open_store(cache))
    assert {path.name for path in cache.iterdir()} == {*folder.FOLDERS, "mine", "portable"}
    assert (elsewhere / "mine").exists()
    (cache / "manifests").mkdir()
    add(open_store(cache), make_key_inputs(source="2"))
    assert (cache / "manifests").exists()


# --- headers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param(make_key_inputs(source="auto t = __TIME__;"), id="clock in the source"),
        pytest.param(make_key_inputs(options=(("D", "T=__DATE__"),)), id="clock in an option"),
    ],
)
def test_a_build_that_depends_on_more_than_files_is_not_cached(cache, inputs):
    kept = add(open_store(cache), inputs)
    assert kept.find(inputs) is None
    assert kept.why(inputs).startswith("never cached")


# --- another tree -------------------------------------------------------------------------------


def moved(tmp_path: Path) -> HeaderTree:
    """The same contents in another folder, as in another virtual environment."""
    other = HeaderTree(tmp_path / "there" / "deeper", "user0", "cudart")
    other.write("user0/a.h", "one")
    other.write("cudart/b.h", "toolkit")
    return other


def test_the_same_contents_at_another_path_are_a_hit_until_an_edit_or_a_shadow(
    cache, tree, tmp_path
):
    tree.build(open_store(cache), tree.key_inputs(), "user0/a.h", "cudart/b.h", code=b"shared")
    other = moved(tmp_path)
    found = open_store(cache).find(other.key_inputs())
    assert found.code == b"shared"
    assert {header.path for header in found.build.headers} == {
        other.path("user0/a.h"),
        other.path("cudart/b.h"),
    }
    shadow = other.write("user0/b.h", "shadow")
    assert open_store(cache).find(other.key_inputs()) is None
    os.unlink(shadow)
    assert open_store(cache).find(other.key_inputs())
    other.write("user0/a.h", "two")
    assert open_store(cache).find(other.key_inputs()) is None
    assert open_store(cache).find(tree.key_inputs())


@from_table
def test_a_build_that_contains_a_path_serves_only_its_own_path(
    cache, tree, tmp_path, header, changes, code
):
    for here in (tree, other := moved(tmp_path)):
        here.write("user0/a.h", header)
    code = code.replace(b"{here}", os.fsencode(tree.root))
    tree.build(open_store(cache), tree.key_inputs(**changes), "user0/a.h", code=code)
    assert open_store(cache).find(tree.key_inputs(**changes))
    assert open_store(cache).find(other.key_inputs(**changes)) is None


@pytest.mark.parametrize(("kind", "bound"), [("cubin", False), ("ptx", False), ("ltoir", True)])
def test_a_toolkit_header_s_assertion_binds_only_code_that_cannot_be_searched(
    cache, tree, tmp_path, kind, bound
):
    for here in (tree, other := moved(tmp_path)):
        here.write("cudart/b.h", "#define CHECK(x) fail(__FILE__)")
    inputs = tree.key_inputs()
    with (kept := open_store(cache)).building(inputs):
        kept.add(inputs, make_object(kind=kind), tree.record("cudart/b.h"))
    assert (open_store(cache).find(other.key_inputs()) is None) is bound


def test_a_header_outside_the_search_binds_the_build_to_its_path(cache, tree, tmp_path):
    absolute = tree.write("outside/x.h", "")
    tree.build(open_store(cache), tree.key_inputs(), absolute)
    assert open_store(cache).find(tree.key_inputs())
    assert open_store(cache).find(moved(tmp_path).key_inputs()) is None


def test_a_copy_of_the_directory_is_a_cache_for_another_machine(cache, tree, tmp_path):
    tree.build(open_store(cache), tree.key_inputs(), "user0/a.h", code=b"copied")
    shutil.copytree(cache, tmp_path / "copy")
    found = open_store(tmp_path / "copy").find(moved(tmp_path).key_inputs())
    assert found.code == b"copied"


# --- bounds, and what a hit costs ----------------------------------------------------------------


def test_the_latest_builds_of_a_key_are_kept(cache, tree):
    inputs = tree.key_inputs()
    texts = [str(i) for i in range(MOST_LISTED + 1)]
    for text in texts:
        tree.write("user0/a.h", text)
        tree.build(open_store(cache), inputs, "user0/a.h", code=text.encode())
    found = []
    for text in texts:
        tree.write("user0/a.h", text)
        found.append(open_store(cache).find(inputs) is not None)
    assert found == [False, *[True] * MOST_LISTED]


def test_builds_in_other_folders_evict_none_of_a_folders_own(cache, tree, tmp_path):
    tree.build(open_store(cache), tree.key_inputs(), "user0/a.h", code=b"first")
    for number in range(5):
        other = HeaderTree(tmp_path / f"checkout {number}", "user0", "cudart")
        other.write("user0/a.h", f"state {number}")
        other.build(open_store(cache), other.key_inputs(), "user0/a.h", code=b"other")

    found = open_store(cache).find(tree.key_inputs())

    assert found.code == b"first"


def test_builds_in_two_folders_that_end_at_once_are_both_listed(cache, tree, tmp_path, monkeypatch):
    other = moved(tmp_path)
    other.write("user0/a.h", "another state")
    write = Store._write

    def slowly(self: Store, kind: str, name: str, data: bytes) -> int:
        if kind == "records":
            time.sleep(0.3)  # meanwhile another process may read the file that is to be replaced
        return write(self, kind, name, data)

    monkeypatch.setattr(Store, "_write", slowly)
    trees = (tree, other)
    at_once(
        *(partial(each.build, open_store(cache), each.key_inputs(), "user0/a.h") for each in trees)
    )

    found = [open_store(cache).find(each.key_inputs()) for each in trees]
    assert None not in found


def test_memory_is_bounded(cache, monkeypatch):
    monkeypatch.setattr(folder, "MAX_BYTES", 2 * (1500 + folder.OVERHEAD))
    kept = open_store(cache, on_disk=False)
    several = [make_key_inputs(source=str(i)) for i in range(4)]
    for inputs in several:
        add(kept, inputs, make_object(b"x" * 100))
    assert [kept.find(q) is not None for q in several] == [False, False, True, True]


def test_search_directories_may_have_equal_labels(cache, tmp_path):
    here = HeaderTree(tmp_path / "here", "one", "two")
    search = tuple(SearchDir("cccl", directory.path) for directory in here.search)
    here.write("two/x.h", "")
    file_times.next_tick()  # a real toolkit is not written right before a build
    inputs = here.key_inputs(search=search)
    here.build(open_store(cache), inputs, "two/x.h")
    found = open_store(cache).find(inputs)
    assert found.build.headers[0].path == here.path("two/x.h")


@pytest.mark.parametrize(("mode", "is_trusted"), [(0o755, True), (0o1777, True), (0o777, False)])
def test_folders_that_no_other_user_can_replace_are_checked_once_per_process(
    tmp_path, monkeypatch, mode, is_trusted
):
    above = tmp_path / "above"
    above.mkdir()
    above.chmod(mode)
    kept = Folder(str(above / "cache"))
    kept.prepare()
    for number in range(3):
        kept.publish("objects", f"{number}", b"code")
    opened = []
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, flags, *a, **k: opened.append(flags) or real(path, flags, *a, **k)
    )

    assert kept.read("objects", "2") == b"code"

    assert any(flags & os.O_DIRECTORY for flags in opened) is not is_trusted
