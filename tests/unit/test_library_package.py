"""The example package from source to use: built as a wheel, installed, used without a toolkit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytest.importorskip("hatchling", reason="hatchling builds the wheels: it is in the extra `test`")


def build_wheel(project: Path, backend: str, installed: Path | None = None) -> Path:
    """Build a project's wheel with its own backend, as pip without build isolation does.

    `installed` is a folder of packages that come before this environment's.
    """
    code = f"import sys, {backend} as backend; print(backend.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(project)],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(installed or "")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return project / done.stdout.split()[-1]


def unpack(wheel: Path, folder: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)


@pytest.fixture(scope="module")
def rtcompile_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("rtcompile")
    for name in ("rtcompile", "include_shims"):
        shutil.copytree(ROOT / name, project / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, project)
    return build_wheel(project, "hatchling.build")


@pytest.fixture(scope="module")
def build_environment(tmp_path_factory: pytest.TempPathFactory, rtcompile_wheel: Path) -> Path:
    """A folder with rtcompile as installed: the hooks are found by its metadata."""
    folder = tmp_path_factory.mktemp("build") / "site-packages"
    unpack(rtcompile_wheel, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory, build_environment: Path) -> Path:
    """The example's wheel."""
    project = tmp_path_factory.mktemp("wheel") / "fastrows"
    shutil.copytree(ROOT / "examples/fastrows", project)
    return build_wheel(project, "hatchling.build", build_environment)


@pytest.fixture(scope="module")
def environment(
    tmp_path_factory: pytest.TempPathFactory, wheel: Path, rtcompile_wheel: Path
) -> Path:
    """A fresh virtual environment's Python: the two wheels, and neither CuPy nor a toolkit."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(folder.glob("lib/python3.*/site-packages"))
    for one in (rtcompile_wheel, wheel):
        unpack(one, site)
    return folder / "bin/python"


def use(python: Path, code: str, home: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, "-I", "-c", code],
        env={"HOME": str(home), "PATH": "", **environ},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_carries_the_bundle(wheel: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"fastrows/kernels.rtcb", "fastrows/kernels/rows.cu"} <= names
    assert "fastrows/include/fastrows/reduce.cuh" in names


USE = """
import json, sys, fastrows
code = fastrows._rows.compile("sm_90a")
for name in fastrows._rows:
    fastrows._rows[name].check(code)
loaded = [name for name in sys.modules if name.startswith(("rtcompile.compilers", "rtcompile.workers"))]
print(json.dumps([code.build.hit, code.build.compiler, len(code.build.headers), loaded]))
"""


def test_it_is_used_without_a_toolkit_a_cache_or_a_place_to_write_to(environment: Path, tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    done = use(environment, USE, home, RTCOMPILE_JIT="0")
    assert done.returncode == 0, done.stderr
    hit, compiler, headers, loaded = json.loads(done.stdout)
    assert (hit, compiler.split()[0], loaded) == ("bundle", "nvrtc", [])
    assert headers > 100  # CUB's, recorded; not there
    assert done.stderr == ""
    assert not list(home.iterdir())


def test_an_editable_install_gets_no_bundle(tmp_path, monkeypatch):
    from rtcompile.packages.hooks.hatch import BundleHook

    hook = BundleHook(str(tmp_path), {}, None, None, str(tmp_path), "wheel")
    data: dict[str, dict[str, str]] = {"force_include": {}}
    hook.initialize("editable", data)
    assert data == {"force_include": {}}


SETUPTOOLS_PROJECT = """
[build-system]
requires = ["setuptools", "rtcompile"]
build-backend = "setuptools.build_meta"
[project]
name = "shipped"
version = "1"
[tool.setuptools]
packages = ["shipped"]
package-data = { shipped = ["*.cu"] }
[tool.rtcompile.bundle]
targets = ["shipped"]
bundle = "shipped/kernels.rtcb"
archs = ["sm_80"]
"""
SETUPTOOLS_PACKAGE = """
from rtcompile import KernelLibrary
library = KernelLibrary(__name__, bundle="kernels.rtcb")
module = library.module("k.cu", {"k": "float* x"})
"""


def test_setuptools_makes_the_bundle_too(build_environment: Path, tmp_path):
    pytest.importorskip("setuptools.build_meta", reason="setuptools is in the extra `test`")
    (tmp_path / "shipped").mkdir()
    (tmp_path / "pyproject.toml").write_text(SETUPTOOLS_PROJECT)
    (tmp_path / "shipped/__init__.py").write_text(SETUPTOOLS_PACKAGE)
    (tmp_path / "shipped/k.cu").write_text('extern "C" __global__ void k(float* x) { *x = 1; }')
    wheel = build_wheel(tmp_path, "setuptools.build_meta", build_environment)
    with zipfile.ZipFile(wheel) as archive:
        assert {"shipped/kernels.rtcb", "shipped/k.cu"} <= set(archive.namelist())


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"targets": ["a"], "bundle": "a/k.rtcb"}, r"\[tool.x\] lacks archs"),
        ({"targets": "a", "bundle": "a/k.rtcb", "archs": []}, "targets = 'a': expected a list"),
        ({"arch": ["sm_80"]}, r"\[tool.x\] has 'arch'; known are targets, bundle, archs, source"),
    ],
)
def test_a_table_that_says_too_little_or_too_much_is_told(fields, says):
    from rtcompile.errors import InvalidRequest
    from rtcompile.packages.hooks import Table

    with pytest.raises(InvalidRequest, match=says):
        Table.read(fields, "tool.x")
