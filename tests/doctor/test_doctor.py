"""Tests of `doctor` with deliberately broken installs: verdict and advice are right."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rtcompile import toolkit
from rtcompile.checkup import Check, builds, verdict
from rtcompile.checkup import checks as machine
from rtcompile.settings import Settings
from tests.processes import ran
from tests.tables import from_table
from tests.toolkits import Wheels, program, search, write

pytestmark = pytest.mark.needs_compiler

ROOT = Path(__file__).parents[2]

# Only files that the test installed are found, and no toolkit of this machine.
DOCTOR = """
import sys
sys.path[:] = [p for p in sys.path if "-packages" not in p] + sys.argv[1:3]
from rtcompile.toolkit import search
search.find.__kwdefaults__.update(usual_roots=())
from rtcompile.cli import main
sys.exit(main(["doctor", "--json", *sys.argv[3:]]))
"""


def packages() -> Path:
    spec = importlib.util.find_spec("nvidia")
    folders = list((spec.submodule_search_locations or ()) if spec else ())
    found = [Path(folder) for folder in folders if (Path(folder) / "cuda_nvrtc").is_dir()]
    if not found:
        pytest.skip("the CUDA 12 wheels are not installed here")
    return found[0].parent


@dataclass
class Install:
    """A folder of links to real wheels, which a test breaks."""

    site: Path
    environ: dict[str, str] = field(default_factory=dict)

    @classmethod
    def healthy(cls, folder: Path) -> Install:
        install = cls(folder / "site-packages")
        (install.site / "nvidia").mkdir(parents=True)
        real = packages()
        for name in ("cuda_nvrtc", "cuda_runtime", "cuda_nvcc", "cuda_cccl", "nvjitlink"):
            (install.site / "nvidia" / name).symlink_to(real / "nvidia" / name)
        for info in real.glob("nvidia_*.dist-info"):
            (install.site / info.name).symlink_to(info)
        install.environ = {"RTCOMPILE_CACHE_DIR": str(folder / "cache"), "PATH": str(folder)}
        return install

    def remove(self, wheel: str) -> None:
        (self.site / "nvidia" / wheel).unlink()
        for info in self.site.glob(f"nvidia_{wheel}_cu12-*"):
            info.unlink()

    def unlink_into_copy(self, wheel: str) -> Path:
        """Replace a link to a folder by a folder of links."""
        folder = self.site / "nvidia" / wheel
        real = folder.resolve()
        folder.unlink()
        for path in real.rglob("*"):
            if path.is_file():
                link = folder / path.relative_to(real)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path)
        return folder

    def distribution(self, name: str, version: str) -> None:
        info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def doctor(self, *arguments: str) -> Diagnosis:
        words = [sys.executable, "-S", "-c", DOCTOR, ROOT, self.site, *arguments]
        done = ran(*words, env=self.environ, cwd=self.site.parent)
        assert "Traceback" not in done.stderr, done.stderr
        report = json.loads(done.stdout)
        assert report["verdict"] == done.returncode
        return Diagnosis(done.returncode, [Check(**check) for check in report["checks"]])


@dataclass
class Diagnosis:
    code: int
    checks: list[Check]

    def __getitem__(self, name: str) -> Check:
        found = [check for check in self.checks if check.name == name]
        assert found, [check.name for check in self.checks]
        return found[0]

    def with_status(self, *statuses: str) -> list[str]:
        return [check.name for check in self.checks if check.status in statuses]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    return Install.healthy(tmp_path)


def cccl_of_cuda_13(install):
    install.remove("cuda_cccl")
    version = install.site / "nvidia/cu13/include/cccl/cuda/std/__cccl/version.h"
    write(version, "#define CCCL_VERSION 3000001\n")
    write(version.parents[1] / "version")
    install.distribution("nvidia-cuda-cccl", "13.0.85")


def runtime_of_another_release(install: Install) -> None:
    folder = install.unlink_into_copy("cuda_runtime")
    header = folder / "include/cuda_runtime_api.h"
    text = header.read_text(errors="replace")
    header.unlink()
    header.write_text(text.replace("CUDART_VERSION  12090", "CUDART_VERSION  12040"))
    for info in install.site.glob("nvidia_cuda_runtime_cu12-*"):
        info.unlink()
    install.distribution("nvidia-cuda-runtime-cu12", "12.4.127")


def crt_of_another_release(install: Install) -> None:
    for info in install.site.glob("nvidia_cuda_nvcc_cu12-*"):
        info.unlink()
    install.distribution("nvidia-cuda-nvcc-cu12", "12.8.93")


def nvrtc_without_builtins(install: Install) -> None:
    folder = install.unlink_into_copy("cuda_nvrtc")
    for builtins in (folder / "lib").glob("libnvrtc-builtins*"):
        builtins.unlink()


def nvrtc_cut_short(install: Install) -> None:
    folder = install.unlink_into_copy("cuda_nvrtc")
    library = folder / "lib/libnvrtc.so.12"
    head = library.read_bytes()[:100_000]
    library.unlink()
    library.write_bytes(head)


def cache_of_somebody_else(install: Install) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    cache = Path(install.environ["RTCOMPILE_CACHE_DIR"])
    cache.mkdir(mode=0o755)
    os.chown(cache, 12345, 12345)


def two_cupys(install):
    install.distribution("cupy-cuda12x", "14.2.0")
    install.distribution("cupy-cuda13x", "14.2.0")


def cupy_that_does(code):
    def change(install):
        install.distribution("cupy-cuda12x", "14.2.0")
        write(install.site / "cupy/__init__.py", code)

    return change


def variable(name, value):
    return lambda install: install.environ.update({name: value})


def removed(wheel):
    return lambda install: install.remove(wheel)


def driver(**reported):
    return lambda install: libcuda(install, **reported)


def libcuda(install: Install, *, version: int, init: int) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no gcc to make a libcuda with")
    folder = install.site.parent / "driver"
    folder.mkdir()
    (folder / "stub.c").write_text(
        f"int cuInit(unsigned f) {{ return {init}; }}\n"
        f"int cuDriverGetVersion(int* v) {{ *v = {version}; return 0; }}\n"
    )
    stub = folder / "stub.c"
    ran(compiler, "-shared", "-fPIC", "-o", folder / "libcuda.so.1", stub, check=True)
    install.environ["LD_LIBRARY_PATH"] = str(folder)


UNWRITABLE = ("RTCOMPILE_CACHE_DIR", "/proc/rtcompile")


def nvcc_of_cuda_13(install):
    program(install.site.parent / "nvcc", "13.0.88")


def cupy_of_cuda_13(install):
    install.distribution("cupy-cuda13x", "14.2.0")


@pytest.mark.some(10)
@from_table
def test_a_broken_install_is_diagnosed_with_a_fix(break_it, code, name, detail, hint, install):
    break_it(install)
    found = install.doctor("--no-probes")
    assert found.code == code, found.checks
    bad = [c for c in found.checks if c.name == name and c.status in ("warning", "error")]
    assert any(detail in check.detail and hint in check.hint for check in bad), found.checks


def test_a_healthy_install_without_gpu_cupy_and_nvcc_is_ok(install):
    found = install.doctor("--no-probes")
    assert (found.code, found.with_status("warning", "error")) == (0, [])
    assert found["nvrtc"].detail.startswith("12.9.")
    assert found["cupy"].status == "note"


def test_probes_compile_what_is_possible_and_list_the_rest(install):
    install.remove("cuda_nvcc")
    install.environ["RTCOMPILE_JOBS"] = "1"
    begin = time.monotonic()
    found = install.doctor()
    seconds = time.monotonic() - begin
    assert found["compile plain CUDA"].status == "ok"
    assert found["compile CUB"].status == "ok"
    assert found["precompiled headers"].detail.startswith("made in ")
    assert "not tried without crt" in found["compile WMMA"].detail
    assert "not tried without nvcc" in found["compile with NVCC"].detail
    # A probe's time excludes the probes before it.
    printed = [re.search(r" in (\d+) ms$", check.detail) for check in found.checks]
    took = [int(each[1]) / 1e3 for each in printed if each]
    assert len(took) > 2
    assert sum(took) < seconds


def test_a_probe_has_the_time_limit_of_the_environment():
    settings = Settings.from_environ({"RTCOMPILE_TIMEOUT": "0.1"})
    found = {check.name: check.detail for check in builds(settings, toolkit.current())}
    assert "time limit of 0.1 s" in found["compile CUB"]


def test_an_nvrtc_that_cannot_be_loaded_fails_its_probes(install):
    nvrtc_cut_short(install)
    found = install.doctor()
    assert found.code == 2
    assert found["compile plain CUDA"].status == "error"
    assert "libnvrtc.so" in found["precompiled headers"].detail
    assert "truncated" in found["precompiled headers"].detail


def test_the_verdict_is_that_of_the_worst_check():
    def checks(*statuses: str) -> list[Check]:
        return [Check("x", status, "") for status in statuses]

    assert verdict(checks()) == verdict(checks("ok", "note")) == 0
    assert verdict(checks("ok", "warning", "note")) == 1
    assert verdict(checks("error", "warning")) == 2


def test_parts_that_share_a_folder_are_shown_together(tmp_path):
    site = Wheels(tmp_path).cuda13().site
    toolchain = search(site)
    shown = {check.name: check.detail for check in machine.toolkit_parts(toolchain)}
    folder = str(site / "nvidia/cu13/include")
    assert shown["cudart"].endswith(folder)
    assert shown["crt"].endswith(folder)
