"""Tests of NVRTC as a whole toolkit: its bundled headers are written once and kept in the cache."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from rtcompile.messages.available import missing_header
from rtcompile.settings import Settings
from rtcompile.store import inventory
from rtcompile.store.folder import Folder
from rtcompile.toolkit import model as unpacking
from rtcompile.toolkit.catalogue import PARTS
from rtcompile.toolkit.roots import Hit, Root
from tests.processes import ran
from tests.toolkits import Wheels, bundle, needs_host_compiler, search, toolkit, write

SOURCE = Path(__file__).with_name("nvrtc_with_headers.cpp").read_text()


def nvrtc_alone(site: Path, version: str = "13.5.37") -> Path:
    wheels = Wheels(site).cuda13(version)
    shutil.rmtree(site / "nvidia/cu13/include")
    return wheels.site


# --- the search ----------------------------------------------------------------------------------


def test_nvrtc_alone_is_completed_by_its_bundled_headers(tmp_path):
    site, own = nvrtc_alone(tmp_path / "site"), bundle(tmp_path / "own", "13.5.37")
    toolchain = search(site, unpack=lambda nvrtc: str(own))
    assert toolchain.problems == ()
    assert {toolchain.found_via[part] for part in ("cudart", "crt", "cccl")} == {"NVRTC"}
    folders = [d.path for d in toolchain.search]
    assert str(own / "include") in folders
    assert str(own / "include/cccl") in folders
    shims = next(path for path in folders if path.endswith("include_shims/bundled"))
    assert os.path.isfile(f"{shims}/cuda_runtime.h")
    assert toolchain.versions["cccl"] == "3.5.0"


def test_only_missing_parts_are_taken_from_the_bundled_headers(tmp_path):
    wheels, own = Wheels(tmp_path / "site").cuda13("13.5.37"), bundle(tmp_path / "own", "13.5.37")
    shutil.rmtree(wheels.site / "nvidia/cu13/include/cccl")
    found = search(wheels.site, unpack=lambda nvrtc: str(own)).found_via
    assert (found["cccl"], found["crt"]) == ("NVRTC", "site-packages")


def test_with_a_complete_toolkit_nvrtcs_headers_are_not_unpacked(tmp_path):
    def unpack(nvrtc: Hit) -> str:
        raise AssertionError("nothing is missing")

    assert search(Wheels(tmp_path).cuda13("13.5.37").site, unpack=unpack).problems == ()
    both = nvrtc_alone(tmp_path / "alone"), toolkit(tmp_path / "cuda", "13.5.37")
    assert search(both[0], usual_roots=[str(both[1])], unpack=unpack).problems == ()


def test_a_header_that_nvrtc_does_not_contain_is_named_with_its_wheel(tmp_path):
    site, own = nvrtc_alone(tmp_path / "site"), bundle(tmp_path / "own", "13.5.37")
    advice = missing_header("cuda.h", search(site, unpack=lambda nvrtc: str(own)))
    assert advice["step"] == '`pip install "nvidia-cuda-runtime==13.5.*"`.'


# --- writing them --------------------------------------------------------------------------------


def nvrtc(folder: Path, version: str = "13.5.37", fails: bool = False) -> Hit:
    """An NVRTC with headers inside, made by the host's compiler."""
    write(folder / "nvrtc.cpp", f"#define FAILS {int(fails)}\n{SOURCE}")
    path = folder / "libnvrtc.so.13"
    ran("g++", "-shared", "-fPIC", "-o", path, folder / "nvrtc.cpp", check=True)
    return Hit(PARTS[0], str(folder), str(path), version, Root("", "wheels13", "", (), {}))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(cache_dir=str(tmp_path / "cache"))


@pytest.mark.takes_seconds
@needs_host_compiler
def test_headers_are_written_once_for_a_build_of_nvrtc(tmp_path, settings, monkeypatch):
    found = nvrtc(tmp_path)
    assert unpacking.unpack(found, Settings(cache_dir=settings.cache_dir, jit=False)) is None
    # Without a cache on disk each process has its own.
    folder = unpacking.unpack(found, Settings(cache_dir=settings.cache_dir, cache_on_disk=False))
    assert os.path.isfile(f"{folder}/include/mma.h")
    assert not os.path.exists(settings.cache_dir)
    first = unpacking.unpack(found, settings)
    assert first is not None
    assert os.path.isfile(f"{first}/include/crt/mma.h")
    assert first.startswith(f"{settings.cache_dir}/headers/13.5.37-")
    monkeypatch.setattr(subprocess, "run", None)  # no program may be started
    assert unpacking.unpack(found, settings) == first


@pytest.mark.takes_seconds
@needs_host_compiler
def test_an_older_nvrtc_and_one_that_fails_have_none(tmp_path, settings):
    assert unpacking.unpack(nvrtc(tmp_path, "13.2.86"), settings) is None
    assert unpacking.unpack(nvrtc(tmp_path, fails=True), settings) is None
    assert os.listdir(f"{settings.cache_dir}/headers") == []


# --- in the cache --------------------------------------------------------------------------------


def publish(cache: Path, name: str = "13.5.37-ab") -> Path:
    path = inventory.publish(str(cache), name, lambda folder: write(Path(folder, "a.h"), "x" * 500))
    assert path is not None
    return Path(path)


def date_back(path: Path, hours: float) -> None:
    os.utime(path, (time.time() - 3600 * hours,) * 2)


def test_the_first_of_two_simultaneous_writes_is_kept(cache):
    first = publish(cache)
    assert publish(cache) == first
    assert os.listdir(cache / "headers") == ["13.5.37-ab-500"]


def test_unpacked_headers_count_and_are_evicted_after_their_last_use(cache):
    path, other = publish(cache), publish(cache, "13.4.9-cd")
    folder = Folder(str(cache))
    assert inventory.size(folder) == 1000
    date_back(path, 5)
    assert inventory.find(str(cache), path.name) == str(path)
    assert time.time() - path.stat().st_mtime < 60  # the use is recorded
    date_back(path, 5)
    assert inventory.evict(folder, 600) == 500
    assert (path.exists(), other.exists()) == (False, True)
    assert inventory.evict(folder, 0) == 0  # a build may be reading it
    assert other.exists()
    inventory.empty(folder)
    assert not other.exists()


def test_a_folder_that_others_may_write_to_is_not_used(cache):
    path = publish(cache)
    path.chmod(0o777)
    assert inventory.find(str(cache), "13.5.37-ab") is None
    path.chmod(0o700)
    cache.chmod(0o777)
    assert inventory.find(str(cache), "13.5.37-ab") is None
