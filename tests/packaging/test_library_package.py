"""Tests of the example package: built as a wheel, installed, and used without a toolkit."""

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.wheels import bare_environment, build, use

ROOT = Path(__file__).parents[2]

pytest.importorskip("hatchling", reason="hatchling builds the wheels: it is in the extra `test`")

pytestmark = pytest.mark.needs_compiler


USE = """
import json, sys, fastrows
code = fastrows._rows.compile("sm_90a")
for name in fastrows._rows:
    fastrows._rows[name].check(code)
loaded = [name for name in sys.modules if name.startswith(("rtcompile.compilers", "rtcompile.workers"))]
print(json.dumps([code.build.hit, code.build.compiler, len(code.build.headers), loaded]))
"""


@pytest.mark.slow  # tests/docs/test_packages_page.py builds and uses a smaller package in the same way
def test_its_wheel_works_without_a_toolkit_a_cache_or_a_writable_folder(
    build_environment, rtcompile_wheel, tmp_path
):
    """The wheel is for one of its three architectures, since CUB takes seconds for each."""
    project = tmp_path / "fastrows"
    shutil.copytree(ROOT / "examples/fastrows", project)
    table = project / "pyproject.toml"
    table.write_text(table.read_text().replace('"sm_80", ', "").replace(', "compute_80"', ""))
    wheel = build(project, "hatchling.build", "wheel", build_environment)
    with zipfile.ZipFile(wheel) as archive:
        names = {"kernels.rtcb", "kernels/rows.cu", "include/fastrows/reduce.cuh"}
        assert {f"fastrows/{name}" for name in names} <= {*archive.namelist()}
    environment = bare_environment(tmp_path / "environment", rtcompile_wheel, wheel)
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    done = use(environment, USE, home, RTCOMPILE_JIT="0")
    assert done.returncode == 0, done.stderr
    hit, compiler, headers, loaded = json.loads(done.stdout)
    # A bundle lists the package's own header and none of CUB's.
    assert (hit, compiler.split()[0], headers, loaded) == ("bundle", "nvrtc", 1, [])
    assert done.stderr == ""
    assert not list(home.iterdir())


def test_setuptools_is_warned_that_its_own_build_py_would_replace_the_hooks(
    build_environment, tmp_path
):
    pytest.importorskip("setuptools.build_meta", reason="setuptools is in the extra `test`")
    (tmp_path / "pyproject.toml").write_text(
        """
        [project]
        name = "package"
        version = "1"
        [tool.setuptools.cmdclass]
        build_py = "mine.BuildPy"
        [tool.rtcompile.bundle]
        targets = ["package"]
        bundle = "package/kernels.rtcb"
        archs = ["sm_80"]
        """
    )
    with pytest.raises(AssertionError, match=r"does nothing beside a build_py"):
        build(tmp_path, "setuptools.build_meta", "wheel", build_environment)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"targets": ["a"], "bundle": "a/k.rtcb"}, r"\[tool.x\] lacks archs"),
        ({"targets": "a", "bundle": "a/k.rtcb", "archs": []}, "targets = 'a': expected a list"),
        ({"arch": ["sm_80"]}, r"\[tool.x\] has 'arch'; known are targets, bundle, archs, source"),
    ],
)
def test_an_incomplete_or_unknown_setting_is_reported(fields, message):
    from rtcompile.errors import InvalidRequest
    from rtcompile.extras.packaging.build_hooks import Table

    with pytest.raises(InvalidRequest, match=message):
        Table.read(fields, "tool.x")
