"""Tests of the package in docs/packages.md: created from the page's text, built by both backends, and used."""

from __future__ import annotations

import json
import os
import re
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from rtcompile.bundles.file import rows
from rtcompile.bundles.index import Bundle
from tests.documentation import ROOT, blocks
from tests.processes import ran
from tests.wheels import bare_environment, build, use

pytestmark = pytest.mark.needs_compiler

BACKENDS = ("hatchling.build", "setuptools.build_meta")

USE = """
import json, sys
from mypackage import rows
codes = [rows.compile(arch) for arch in ("sm_80", "sm_90a")]
for name in rows:
    for code in codes:
        rows[name].check(code)
loaded = [name for name in sys.modules if name.startswith(("rtcompile.compilers", "rtcompile.workers"))]
print(json.dumps([[code.build.hit for code in codes], loaded]))
"""


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param, reason="the build backends are in the extra `test`")
    return str(request.param)


# A pip that "installs" this machine's toolkits.
PIP = """
import os, sys
target, requirement = sys.argv[sys.argv.index("--target") + 1:]
release = requirement.partition("]==")[2]
os.symlink(os.path.join(os.environ["TOOLKIT_" + release[:2]], "nvidia"), target + "/nvidia")
"""


@pytest.fixture
def project(backend: str, tmp_path: Path) -> Path:
    """The files that the page tells its reader to save, with this backend's pyproject.toml."""
    for block in blocks(ROOT / "docs/packages.md"):
        name = block.declared.get("file", "")
        if name and (name != "pyproject.toml" or f'build-backend = "{backend}"' in block.text):
            path = tmp_path / "project" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            # Most tests need the toolkit of this environment only.
            path.write_text(re.sub(r"(?m)^cuda = .*\n", "", block.text))
    assert (tmp_path / "project/pyproject.toml").exists()
    return tmp_path / "project"


def check_that_it_works_without_a_compiler(
    folder: Path, rtcompile_wheel: Path, *wheels: Path
) -> None:
    python = bare_environment(folder / "environment", rtcompile_wheel, *wheels)
    home = folder / "home"
    home.mkdir(mode=0o500)
    done = use(python, USE, home, RTCOMPILE_JIT="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [["bundle", "bundle"], []]


@pytest.mark.in_turn("backend")
def test_a_wheel_made_from_the_sdist_works_without_a_compiler(
    project: Path, backend: str, build_environment: Path, rtcompile_wheel: Path, tmp_path: Path
) -> None:
    """Build as `python -m build` does: the sdist, then the wheel from the sdist."""
    sdist = build(project, backend, "sdist", build_environment)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    wheel = build(tmp_path / "unpacked/mypackage-1.0", backend, "wheel", build_environment)
    check_that_it_works_without_a_compiler(tmp_path, rtcompile_wheel, wheel)


@pytest.mark.in_turn("backend")
def test_pip_installs_it_from_its_folder(
    project: Path, backend: str, build_environment: Path, rtcompile_wheel: Path, tmp_path: Path
) -> None:
    """Run `pip install .` without the index, with this environment's backend and no dependencies."""
    python = bare_environment(tmp_path / "environment", rtcompile_wheel)
    site = next(tmp_path.glob("environment/lib/python3.*/site-packages"))
    words = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps"]
    words += ["--no-index", "--quiet", "--target", site, "."]
    done = ran(*words, cwd=project, environ={"PYTHONPATH": build_environment})
    assert done.returncode == 0, done.stderr
    done = use(python, USE, tmp_path, RTCOMPILE_JIT="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [["bundle", "bundle"], []]


@pytest.mark.parametrize("backend", ["setuptools.build_meta"], indirect=True)
def test_setuptools_packs_the_headers_of_a_src_layout(
    project: Path, backend: str, build_environment: Path
) -> None:
    (project / "src").mkdir()
    package = (project / "mypackage").rename(project / "src/mypackage")
    table = project / "pyproject.toml"
    table.write_text(table.read_text().replace('source = "."', 'source = "src"'))
    source = package / "kernels/rows.cu"
    source.write_text("#include <mypackage/factor.cuh>\n" + source.read_text())
    (package / "include/mypackage").mkdir(parents=True)
    (package / "include/mypackage/factor.cuh").write_text("#define FACTOR 2\n")
    library = package / "__init__.py"
    library.write_text(
        library.read_text().replace(", bundle=", ', include_dirs=["include"], bundle=')
    )
    with tarfile.open(build(project, backend, "sdist", build_environment)) as archive:
        packed = {name.partition("/src/")[2] for name in archive.getnames()}
    with zipfile.ZipFile(build(project, backend, "wheel", build_environment)) as wheel:
        in_wheel = set(wheel.namelist())
    needed = {"mypackage/kernels/rows.cu", "mypackage/include/mypackage/factor.cuh"}
    assert needed <= packed & in_wheel
    assert "mypackage/kernels.rtcb" in in_wheel


def on_the_page(project: Path, backend: str) -> None:
    """Write the page's own table, with both releases of CUDA."""
    (text,) = [b.text for b in blocks(ROOT / "docs/packages.md") if f'"{backend}"' in b.text]
    (project / "pyproject.toml").write_text(text)


@pytest.mark.in_turn("backend")
def test_one_wheel_has_the_builds_of_two_cudas(
    project: Path,
    backend: str,
    build_environment: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = os.environ.get("RTCOMPILE_TEST_CUDA13")
    if not other:
        pytest.skip("RTCOMPILE_TEST_CUDA13 names no folder with CUDA 13")
    on_the_page(project, backend)
    # An isolated environment has the backend, but neither CuPy nor a toolkit.
    python = bare_environment(tmp_path / "isolated")
    site = next(tmp_path.glob("isolated/lib/python3.*/site-packages"))
    theirs = Path(sysconfig.get_path("purelib"))
    for path in theirs.iterdir():
        if not path.name.startswith(("cupy", "nvidia")) and path.suffix != ".pth":
            (site / path.name).symlink_to(path)
    (site / "pip").unlink(missing_ok=True)
    (site / "pip").mkdir()
    (site / "pip/__main__.py").write_text(PIP)
    monkeypatch.setenv("TOOLKIT_12", str(theirs))
    monkeypatch.setenv("TOOLKIT_13", other)
    wheel = build(project, backend, "wheel", build_environment, python=python)
    with zipfile.ZipFile(wheel) as archive:
        path = archive.extract("mypackage/kernels.rtcb", tmp_path)
    found = {(row.cuda, row.kind, str(row.arch)) for row in rows(Bundle(path))}
    codes = [("cubin", "sm_80"), ("cubin", "sm_90a"), ("ptx", "sm_80")]
    assert found == {(cuda, *code) for cuda in (12, 13) for code in codes}


@pytest.mark.in_turn("backend")
def test_an_editable_install_gets_no_bundle(
    project: Path, backend: str, build_environment: Path
) -> None:
    with open(project / "pyproject.toml", "a") as table:  # else hatchling wants one more package
        table.write('[tool.hatch.build]\ndev-mode-dirs = ["."]\n')
    wheel = build(project, backend, "editable", build_environment)
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".rtcb")]
    assert not list(project.rglob("*.rtcb"))


@pytest.mark.in_turn("backend")
def test_a_header_that_the_wheel_would_lack_stops_the_build(
    project: Path, backend: str, build_environment: Path
) -> None:
    source = project / "mypackage/kernels/rows.cu"
    source.write_text('#include "factor.table"\n' + source.read_text())
    (project / "mypackage/kernels/factor.table").write_text("// nothing\n")
    (project / ".gitignore").write_text("*.table\n")  # hatchling leaves such files out
    with pytest.raises(AssertionError) as caught:
        build(project, backend, "wheel", build_environment)
    message = str(caught.value)
    assert "no wheel was made" in message
    assert "factor.table" in message
    assert ("force-include" if backend == "hatchling.build" else "package-data") in message
    assert not list(project.glob("*.whl"))


@pytest.mark.in_turn("backend")
def test_a_library_with_another_bundle_path_stops_the_build(
    project: Path, backend: str, build_environment: Path
) -> None:
    package = project / "mypackage/__init__.py"
    package.write_text(package.read_text().replace("kernels.rtcb", "rows.rtcb"))
    with pytest.raises(
        AssertionError,
        match=r"at mypackage/rows\.rtcb, but it is written to mypackage/kernels\.rtcb: name the same path",
    ):
        build(project, backend, "wheel", build_environment)


@pytest.mark.in_turn("backend")
def test_an_error_of_a_kernel_is_shown_without_a_traceback(
    project: Path, backend: str, build_environment: Path
) -> None:
    source = project / "mypackage/kernels/rows.cu"
    source.write_text(source.read_text() + "#error not today\n")
    with pytest.raises(AssertionError) as caught:
        build(project, backend, "wheel", build_environment)
    assert "rows.cu:5:2: fatal error: #error directive: not today" in str(caught.value)
    assert "Traceback" not in str(caught.value)
