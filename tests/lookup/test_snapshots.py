"""A snapshot of the environment is current, and a toolchain is unchanged, until something that matters changes."""

import itertools
import os
import sys

import pytest

from rtcompile import settings
from rtcompile.errors import InvalidRequest
from rtcompile.files import sealed
from rtcompile.lookup import environment
from rtcompile.store.folder import Folder, Memory

pytestmark = pytest.mark.usefixtures("absent_device")


def noted(here, *parts):
    """Note a toolchain of these files."""
    signatures = {str(part): environment.signature(str(part)) for part in parts}
    here.note([*environment.packed(signatures, "libnvrtc.so"), b"", bytes((9, 0))])


def test_a_snapshot_is_the_same_object_while_only_unrelated_variables_change(monkeypatch):
    here = environment.current()
    assert environment.current() is here
    monkeypatch.setenv("UNRELATED", "1")
    assert environment.current() is here
    for path in ("/one", "/two", "/one"):
        monkeypatch.setenv("CUDA_PATH", path)
        assert environment.current() is not here
        here = environment.current()


def test_the_variables_of_a_snapshot_are_the_processes(monkeypatch):
    monkeypatch.setenv("UNRELATED", "1")
    monkeypatch.delenv("PATH")
    environment.forget()
    here = environment.current()
    for _ in range(2):
        assert dict(here.variables) == dict(os.environ)


def test_a_longer_and_a_shorter_search_path_make_a_new_snapshot(monkeypatch):
    here, before = environment.current(), sys.path
    monkeypatch.setattr(sys, "path", [*before, "/other"])
    longer = environment.current()
    monkeypatch.setattr(sys, "path", before)
    assert here is not longer is not environment.current()


@pytest.mark.parametrize(
    ("searched", "entry"),
    [
        *itertools.product(["sys.path", "PATH", "LD_LIBRARY_PATH"], ["", "sub", "-sub"]),
        *itertools.product(["RTCOMPILE_CUTLASS_PATH", "CUDA_HOME"], ["sub"]),
    ],
)
def test_a_relative_folder_is_another_one_in_another_directory(
    tmp_path, monkeypatch, searched, entry
):
    (tmp_path / "one" / entry).mkdir(parents=True)
    (tmp_path / "two" / entry / "nvidia").mkdir(parents=True)
    if searched == "sys.path":
        monkeypatch.setattr(sys, "path", [*sys.path, entry])
    else:
        monkeypatch.setenv(searched, entry if entry == "sub" else f"/usr/bin:{entry}")
    seen = []
    for name in ("one", "two", "one"):
        monkeypatch.chdir(tmp_path / name)
        seen.append(environment.current())
        assert environment.current() is seen[-1]
    assert seen[0] is not seen[1] is not seen[2]
    assert seen[0].key == seen[2].key != seen[1].key


def test_the_directory_does_not_matter_while_all_folders_are_absolute(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path[:1] == "/"])
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    here = environment.current()
    monkeypatch.chdir(tmp_path)
    assert environment.current() is here


def test_a_removed_working_directory_prevents_only_what_is_relative_to_it(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv("PATH", "bin")
    assert environment.current().settings
    monkeypatch.setenv("CUDA_HOME", "cuda")
    with pytest.raises(InvalidRequest, match="the working directory, which was removed"):
        assert environment.current().settings


def test_a_folder_below_a_missing_home_is_not_found(monkeypatch):
    monkeypatch.setattr(settings, "_home", lambda env: "")
    assert environment.expanded({"CUDA_PATH": "~/cuda"}) == {"CUDA_PATH": "~/cuda"}
    monkeypatch.setenv("CUDA_PATH", "~/cuda")
    assert environment.current().key


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, True),
        ({"RTCOMPILE_AHEAD": "0"}, False),
        ({"RTCOMPILE_JIT": "0"}, False),
        ({"RTCOMPILE_TIMEOUT": "soon"}, False),
    ],
)
def test_builds_start_ahead_only_if_all_settings_allow_it(monkeypatch, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert bool(environment.current().looks_ahead) is expected


def test_only_a_program_that_can_be_run_is_found_on_path(tmp_path):
    for name in ("folder", "text", "bin"):
        (tmp_path / name).mkdir()
    (tmp_path / "folder/nvcc").mkdir()
    (tmp_path / "text/nvcc").touch()
    program = tmp_path / "bin/nvcc"
    program.touch()
    path = os.pathsep.join(f"{tmp_path}/{name}" for name in ("folder", "missing", "text", "bin"))
    assert environment.on_path("nvcc", path.removesuffix(f":{tmp_path}/bin")) == ""
    assert environment.on_path("nvcc", path) == ""
    program.chmod(0o755)
    assert environment.on_path("nvcc", path) == str(program)
    assert environment.on_path(str(program), "") == str(program)
    assert environment.on_path("nvcc", "") == ""


def test_another_program_on_path_is_seen_by_another_look(tmp_path, monkeypatch):
    folders = [tmp_path / str(number) for number in range(12)]
    for folder in folders:
        folder.mkdir()
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))
    here = environment.current()
    for folder in reversed(folders):
        assert environment.looked_again() is here
        (folder / "nvcc").touch(0o755)
        assert environment.looked_again() is not here
        here = environment.current()


# --- the toolchain ----------------------------------------------------------------------------------


def test_results_of_another_toolchain_are_forgotten_and_those_of_the_same_are_kept(tmp_path):
    here = environment.current()
    for number in range(12):
        noted(here, tmp_path / str(number))
        assert here.memory is None
        here.memory = memory = Memory()
        noted(here, tmp_path / str(number))
        assert here.memory is memory
    assert (here.loads, here.capability) == ("libnvrtc.so", (9, 0))


def test_a_toolchain_is_unknown_after_a_folder_of_packages_appeared_or_vanished(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    for change in (os.mkdir, os.rmdir):
        here = environment.current()
        noted(here)
        assert here.signature()
        change(tmp_path / "nvidia")
        here._checked = float("-inf")  # a second later
        assert here.signature() == ""
        assert environment.current() is not here


@pytest.mark.parametrize("by", [-1, 1])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_toolchains_file_must_have_the_same_size_time_and_inode(tmp_path, at, by):
    stat = [*environment.signature(str(tmp_path))]
    same = environment.packed({str(tmp_path): tuple(stat)}, "")
    assert environment.are_unchanged(same)
    for times in (same[1] * 2, same[1][:-1]):
        assert not environment.are_unchanged([same[0], times])
    stat[at] += by
    assert not environment.are_unchanged(environment.packed({str(tmp_path): tuple(stat)}, ""))


def test_another_state_of_a_toolchains_file_is_another_toolchain():
    here, found = environment.current(), []
    for stat in ((1, 2, 3), (1, 2, 4)):
        here.note([*environment.packed({"/nvcc": stat}, "libnvrtc.so"), b"", bytes((9, 0))])
        found.append(here._signature)
    assert found[0] != found[1]


@pytest.mark.parametrize(("count", "is_used"), [(3, False), (4, False), (5, True), (6, False)])
def test_the_file_of_a_toolchain_has_five_fields(cache, count, is_used):
    here = environment.current()
    folder = Folder(str(cache))
    folder.prepare()
    fields = [*environment.packed({}, "libnvrtc.so"), b"[]", bytes((9, 0)), b"more"][:count]
    data = sealed.seal(environment.SEAL, here.toolchain_key, fields)
    folder.publish(environment.TOOLCHAINS, here.toolchain_key, data)
    assert bool(here.signature()) is is_used
    assert here.capability == ((9, 0) if is_used else ())
