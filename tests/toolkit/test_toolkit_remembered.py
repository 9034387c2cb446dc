"""Tests of the remembered toolchain: it is used exactly as long as it is valid."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rtcompile.lookup.environment as environments
from rtcompile import toolkit
from rtcompile.errors import ToolkitNotFound
from rtcompile.files import sealed as files
from rtcompile.request import arch as archs
from rtcompile.request import values
from rtcompile.settings import Settings
from rtcompile.store import inventory
from rtcompile.store.folder import Folder
from rtcompile.toolkit import current, search
from rtcompile.toolkit.model import Toolchain
from tests.jobs import at_once
from tests.processes import forget_toolkit, python
from tests.toolkits import Wheels, needs_host_compiler, program, write
from tests.toolkits import bundle as fake_bundle

GPP, REAL = shutil.which("g++"), dict(os.environ)  # before a test changes PATH


def sealed(key: str, record: object) -> bytes:
    fields = [*environments.packed({}, ""), json.dumps(record).encode()]
    return files.seal("toolchain", key, fields)


class Environment:
    """A test's site-packages folder, PATH and cache, and the number of searches."""

    def __init__(self, tmp_path: Path) -> None:
        self.wheels = Wheels(tmp_path / "site-packages").cuda12("12.9.86")
        self.nvrtc = self.wheels.site / "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"
        self.cache = tmp_path / "cache"
        self.searches = 0

    def as_a_new_process(self) -> Toolchain:
        forget_toolkit()
        environments.forget()
        return current()

    def file(self) -> Path:
        (file,) = (self.cache / "toolchains").iterdir()
        return file


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environment:
    made = Environment(tmp_path)
    find = search.find

    def counted(*arguments: object, **others: object) -> Toolchain:
        made.searches += 1
        roots = (str(tmp_path / "roots/*"),)
        return find(*arguments, usual_roots=roots, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(search, "find", counted)
    monkeypatch.setattr(sys, "path", [str(made.wheels.site)])
    monkeypatch.delitem(sys.modules, "cupy", raising=False)  # it is not on this path
    monkeypatch.setattr(toolkit, "_in_this_process", {})
    monkeypatch.setattr(toolkit, "_decoded", {})
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(made.cache))
    for name in ("CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    return made


def test_the_second_process_gets_the_same_toolchain_without_a_search(environment):
    first = current()
    assert environment.as_a_new_process() == first
    assert first.require_nvrtc().version == "12.9.86"
    assert environment.searches == 1


def test_one_process_reads_the_file_once(environment):
    environment.as_a_new_process()
    environment.file().write_text("spoilt since")
    current()
    assert environment.searches == 1


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda e: e.nvrtc.write_text("another NVRTC"), id="library-upgraded"),
        pytest.param(lambda e: os.utime(e.nvrtc, (1, 1)), id="library-touched"),
        pytest.param(lambda e: e.wheels.dist("nvidia_curand_cu12", "10.3"), id="wheel-installed"),
        pytest.param(lambda e: e.wheels.cupy(), id="cupy-installed"),
        pytest.param(
            lambda e: program(e.wheels.site.parent / "bin/nvcc", "12.9.86"), id="nvcc-on-PATH"
        ),
        pytest.param(
            lambda e: (e.wheels.site.parent / "roots/cuda-12.9").mkdir(parents=True),
            id="toolkit-in-a-default-folder",
        ),
    ],
)
@pytest.mark.parametrize("same_process", [True, False])
def test_a_change_of_the_searched_files_causes_a_new_search(environment, change, same_process):
    current()
    change(environment)
    if same_process:
        current()
    else:
        environment.as_a_new_process()
    assert environment.searches == 2


@pytest.mark.parametrize(
    "variable", ["CUDA_PATH", "CUDA_HOME", "CONDA_PREFIX", "CUTLASS_PATH", "NVCC_CCBIN"]
)
def test_another_value_of_a_variable_causes_a_new_search(environment, monkeypatch, variable):
    current()
    monkeypatch.setenv(variable, "/proc/nowhere")
    current()
    assert environment.searches == 2
    monkeypatch.undo()


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda file: file.write_text(""), id="empty"),
        pytest.param(lambda file: file.write_bytes(file.read_bytes()[:200]), id="truncated"),
        pytest.param(lambda file: file.write_bytes(sealed(file.name, [])), id="of-another-shape"),
        pytest.param(
            lambda file: file.write_bytes(sealed(file.name, {"nvrtc": 3})), id="of-another-schema"
        ),
        pytest.param(
            lambda file: file.write_bytes(sealed("another key", {})), id="for-another-inputs"
        ),
        pytest.param(lambda file: os.link(file, file.parent.parent / "theirs"), id="linked"),
    ],
)
def test_an_untrusted_file_is_replaced_by_a_new_search(environment, spoil):
    found = current()
    spoil(environment.file())
    assert environment.as_a_new_process() == found
    assert environment.searches == 2
    assert environment.as_a_new_process() == found
    assert environment.searches == 2


def test_another_path_with_the_same_programs_causes_no_search(environment, monkeypatch):
    folder = environment.wheels.site.parent / "cuda/bin"
    program(folder / "nvcc", "12.9.86")
    program(folder / "g++", "12.2")
    monkeypatch.setenv("PATH", str(folder))
    found = current()
    searches = environment.searches
    for before in ("/proc/nowhere", str(environment.wheels.site.parent)):
        monkeypatch.setenv("PATH", f"{before}:{os.environ['PATH']}:/sbin")
        assert environment.as_a_new_process() == found
    assert environment.searches == searches


def test_another_path_that_also_lacks_a_program_causes_no_search(
    environment, monkeypatch, tmp_path
):
    (tmp_path / "of this shell").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "of this shell"))
    current()
    (tmp_path / "of this shell").rmdir()
    monkeypatch.setenv("PATH", "/proc/nowhere")
    environment.as_a_new_process()
    assert environment.searches == 1


def test_another_compiler_earlier_on_path_causes_a_new_search(environment, monkeypatch):
    program(environment.wheels.site.parent / "bin/nvcc", "12.9.86")
    current()
    newer = program(environment.wheels.site.parent / "first/bin/nvcc", "12.9.99")
    monkeypatch.setenv("PATH", f"{newer.parent}:{os.environ['PATH']}")
    assert environment.as_a_new_process().require_nvcc().path == str(newer)


def test_a_compiler_that_does_not_report_its_version_is_run_again(environment):
    nvcc = program(environment.wheels.site.parent / "bin/nvcc", "12.9.86")
    works = nvcc.read_text()
    status = nvcc.stat()
    nvcc.write_text("#!/bin/sh\nexit 1\n")
    os.utime(nvcc, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert current().nvcc is None
    nvcc.write_text(works)
    os.utime(nvcc, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert environment.as_a_new_process().nvcc is not None


def test_without_a_folder_to_write_to_the_result_is_the_same(environment, tmp_path, monkeypatch):
    found = current()
    forget_toolkit()
    not_a_folder = tmp_path / "file"
    not_a_folder.touch()
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(not_a_folder / "cache"))
    assert current() == found


def test_a_cache_in_memory_leaves_nothing_on_disk(environment, monkeypatch):
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    found = current()
    environments.forget()
    assert current() is found
    assert environment.searches == 1
    assert not environment.cache.exists()


@pytest.mark.parametrize("rounds", [10, pytest.param(500, marks=pytest.mark.slow)])
def test_simultaneous_threads_get_one_toolchain(environment, rounds, monkeypatch):
    find = search.find

    def find_at_some_time(*arguments: object, **others: object) -> Toolchain:
        found = find(*arguments, **others)
        time.sleep(random.uniform(0, 0.005))
        return found

    monkeypatch.setattr(search, "find", find_at_some_time)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for number in range(rounds):
            monkeypatch.setenv("RTCOMPILE_CACHE_DIR", f"{environment.cache}{number}")
            forget_toolkit()
            environments.forget()
            results = at_once(*[current] * 8)
            assert len(results) == 8
            assert all(found is results[0] for found in results)
    finally:
        sys.setswitchinterval(before)
    forget_toolkit()
    environments.forget()
    assert current() == results[0]
    assert environment.searches == rounds


@pytest.mark.takes_seconds
def test_a_remembered_toolchain_does_not_import_the_search(tmp_path):
    source = """
import sys
from rtcompile.toolkit import current
current()
heavy = ("cupy", "importlib.metadata", "subprocess", "rtcompile.toolkit.search")
print([name for name in heavy if name in sys.modules])
"""
    cold, warm = (
        python(source, environ={"RTCOMPILE_CACHE_DIR": tmp_path}, check=True).stdout for _ in "12"
    )
    assert "rtcompile.toolkit.search" in cold
    assert warm == "[]\n"


@pytest.mark.parametrize(
    ("system", "machine"), [("darwin", "arm64"), ("win32", "AMD64"), ("linux", "ppc64le")]
)
def test_on_other_platforms_the_error_names_the_supported_ones(
    environment, monkeypatch, system, machine
):
    monkeypatch.setattr(sys, "platform", system)
    name = os.uname_result(("", "", "", "", machine))
    monkeypatch.setattr(os, "uname", lambda: name)
    with pytest.raises(ToolkitNotFound, match="Linux x86-64 and aarch64"):
        current().require_nvrtc()
    assert environment.searches == 0


def test_evicted_headers_of_nvrtc_are_unpacked_again(environment, monkeypatch):
    cache = environment.cache
    written: list[str] = []

    def unpack(nvrtc: object, settings: Settings) -> str | None:
        path = inventory.publish(str(cache), "12.9.86-ab", lambda at: fake_bundle(Path(at), "12.9"))
        written.append(str(path))
        return path

    monkeypatch.setattr(toolkit, "unpack", unpack)
    for name in ("cuda_runtime", "cuda_nvcc", "cuda_cccl"):
        shutil.rmtree(environment.wheels.site / "nvidia" / name)
    for _ in range(2):
        assert environment.as_a_new_process().found_via["cccl"] == "NVRTC"
    assert len(written) == 1
    inventory.discard(Folder(str(cache)), "headers", Path(written[0]).name)
    assert environment.as_a_new_process().found_via["cccl"] == "NVRTC"
    assert written == [written[0]] * 2
    Path(written[0]).chmod(0o777)  # other users may now add headers
    environment.as_a_new_process()
    assert environment.searches == 3


LISTING = """
extern "C" int nvrtcGetNumSupportedArchs(int* n) { *n = 2; return 0; }
extern "C" int nvrtcGetSupportedArchs(int* numbers) { numbers[0] = 90; numbers[1] = 130; return 0; }
"""


@needs_host_compiler
def test_a_newer_nvrtc_is_queried_once_for_its_architectures(environment, monkeypatch):
    release = archs.NEWEST_MEASURED[0], archs.NEWEST_MEASURED[1] + 1
    version = f"{release[0]}.{release[1]}.1"
    environment.nvrtc.unlink()
    environment.wheels.cuda13(version)
    library = environment.wheels.site / "nvidia/cu13/lib/libnvrtc.so.13"
    source = write(library.with_name("nvrtc.cpp"), LISTING)
    for path in library.parent.glob("libnvrtc*.so*"):
        subprocess.run([str(GPP), "-shared", "-fPIC", "-o", path, source], check=True, env=REAL)
    monkeypatch.setattr(archs, "learned", {})
    archs.supported.cache_clear()
    for _ in range(2):
        assert environment.as_a_new_process().require_nvrtc().architectures == (90, 130)
        assert values.Arch(13, 0, "a") in archs.supported(release)
        archs.learned.clear()
        archs.supported.cache_clear()
    assert environment.searches == 1
