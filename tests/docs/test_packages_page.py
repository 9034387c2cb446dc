"""Tests of the package in docs/packages.md: created from the page's text, built by both backends, and used."""

import json
import os
import re
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from rtcompile.lookup.bundles import Bundle
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


def works_without_a_compiler(python: Path, home: Path) -> None:
    done = use(python, USE, home, RTCOMPILE_JIT="0")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [["bundle", "bundle"], []]


def moved_to_a_src_layout(project: Path) -> None:
    """Move the package below src/, with a header in a folder of its own."""
    (project / "src").mkdir()
    package = (project / "mypackage").rename(project / "src/mypackage")
    (package / "include/mypackage").mkdir(parents=True)
    (package / "include/mypackage/factor.cuh").write_text("#define FACTOR 2\n")
    source = package / "kernels/rows.cu"
    source.write_text("#include <mypackage/factor.cuh>\n" + source.read_text())
    for path, old, new in (
        (project / "pyproject.toml", 'source = "."', 'source = "src"'),
        (package / "__init__.py", ", bundle=", ', include_dirs=["include"], bundle='),
    ):
        path.write_text(path.read_text().replace(old, new))


@pytest.mark.some(1)
def test_a_wheel_made_from_the_sdist_works_without_a_compiler(
    project, backend, build_environment, rtcompile_wheel, tmp_path
):
    """Build as `python -m build` does: the sdist, then the wheel from the sdist; setuptools has a src layout."""
    needed = {"mypackage/kernels/rows.cu", "mypackage/kernels.rtcb"}
    if backend == "setuptools.build_meta":
        moved_to_a_src_layout(project)
        needed.add("mypackage/include/mypackage/factor.cuh")
    with tarfile.open(build(project, backend, "sdist", build_environment)) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    wheel = build(tmp_path / "unpacked/mypackage-1.0", backend, "wheel", build_environment)
    with zipfile.ZipFile(wheel) as archive:
        assert needed <= {*archive.namelist()}
    python = bare_environment(tmp_path / "environment", rtcompile_wheel, wheel)
    (tmp_path / "home").mkdir(mode=0o500)
    works_without_a_compiler(python, tmp_path / "home")


@pytest.mark.some(1)
def test_pip_installs_it_from_its_folder(project, build_environment, rtcompile_wheel, tmp_path):
    """Run `pip install .` without the index, with this environment's backend and no dependencies."""
    python = bare_environment(tmp_path / "environment", rtcompile_wheel)
    site = next(tmp_path.glob("environment/lib/python3.*/site-packages"))
    words = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps"]
    words += ["--no-index", "--quiet", "--target", site, "."]
    done = ran(*words, cwd=project, environ={"PYTHONPATH": build_environment})
    assert done.returncode == 0, done.stderr
    works_without_a_compiler(python, tmp_path)


def on_the_page(project: Path, backend: str, cuda13: str) -> None:
    """Write the page's own table, with both releases of CUDA, the second the one that is installed for the tests."""
    (text,) = [b.text for b in blocks(ROOT / "docs/packages.md") if f'"{backend}"' in b.text]
    (project / "pyproject.toml").write_text(text.replace("13.0", cuda13))


@pytest.mark.some(1)
def test_one_wheel_has_the_builds_of_two_cudas(
    project, backend, build_environment, tmp_path, monkeypatch
):
    other = os.environ.get("RTCOMPILE_TEST_CUDA13")
    if not other:
        pytest.skip("RTCOMPILE_TEST_CUDA13 names no folder with CUDA 13")
    on_the_page(project, backend, "13.5")
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
    found = {(row.cuda, row.kind, str(row.arch)) for row in Bundle(path).rows()}
    codes = [("cubin", "sm_80"), ("cubin", "sm_90a"), ("ptx", "sm_80")]
    assert found == {(cuda, *code) for cuda in (12, 13) for code in codes}


@pytest.mark.some(1)
def test_an_editable_install_gets_no_bundle(project, backend, build_environment):
    with open(project / "pyproject.toml", "a") as table:  # else hatchling wants one more package
        table.write('[tool.hatch.build]\ndev-mode-dirs = ["."]\n')
    wheel = build(project, backend, "editable", build_environment)
    with zipfile.ZipFile(wheel) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".rtcb")]
    assert not list(project.rglob("*.rtcb"))


def lacks_a_header(project: Path) -> None:
    source = project / "mypackage/kernels/rows.cu"
    source.write_text('#include "factor.table"\n' + source.read_text())
    (project / "mypackage/kernels/factor.table").write_text("// nothing\n")
    (project / ".gitignore").write_text("*.table\n")  # hatchling leaves such files out


def names_another_bundle(project: Path) -> None:
    package = project / "mypackage/__init__.py"
    package.write_text(package.read_text().replace("kernels.rtcb", "rows.rtcb"))


def has_an_error(project: Path) -> None:
    source = project / "mypackage/kernels/rows.cu"
    source.write_text(source.read_text() + "#error not today\n")


@pytest.mark.some
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lacks_a_header, r"(?s)no wheel was made.*factor\.table.*(force-include|package-data)"),
        (
            names_another_bundle,
            r"at mypackage/rows\.rtcb, but .* mypackage/kernels\.rtcb: name the same",
        ),
        (has_an_error, r"rows\.cu:5:2: fatal error: #error directive: not today"),
    ],
)
def test_a_package_that_would_not_work_stops_the_build_without_a_traceback(
    project, backend, build_environment, spoil, message
):
    spoil(project)
    with pytest.raises(AssertionError, match=message) as caught:
        build(project, backend, "wheel", build_environment)
    remedy = "force-include" if backend == "hatchling.build" else "package-data"
    assert spoil is not lacks_a_header or remedy in str(caught.value)
    assert spoil is not has_an_error or "Traceback" not in str(caught.value)
    assert not list(project.glob("*.whl"))
