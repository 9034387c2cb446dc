"""Tests of packages that provide headers: found without an import, searched after CUDA's, reported if broken."""

import sys
from pathlib import Path

import pytest

import rtcompile
from rtcompile.checkup import checks
from rtcompile.files.headers import SearchDir
from rtcompile.toolkit import search as searching
from tests.toolkits import Wheels, search, write

USE = '#include <mylib/value.cuh>\nextern "C" __global__ void k(int* x) { *x = MYLIB_VALUE; }'


def provider(
    site: Path, name: str = "mylib", *, version: str = "1.2", declared: str = "", package: str = ""
) -> Path:
    """Create an installed package that provides headers; return the folder of its headers."""
    declared, package = declared or f"{name}.include", package or name
    info = site / f"{package}-{version}.dist-info"
    write(info / "METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    write(info / "entry_points.txt", f"[rtcompile.headers]\n{name} = {declared}\n")
    write(site / name / "__init__.py", "raise RuntimeError('imported')")
    return write(site / name / "include/mylib/value.cuh", "#define MYLIB_VALUE 42\n").parents[1]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A site-packages folder before all others."""
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.mark.needs_compiler
@pytest.mark.parametrize("backend", ["nvrtc", pytest.param("nvcc", marks=pytest.mark.needs_nvcc)])
def test_installing_a_provider_and_a_change_of_its_header_are_noticed(site, backend):
    with pytest.raises(rtcompile.CompileError, match=r"mylib/value\.cuh"):
        rtcompile.compile(USE, arch="sm_80", backend=backend)
    include = provider(site)
    code = rtcompile.compile(USE, arch="sm_80", backend=backend)
    assert "headers:mylib" in {header.label for header in code.build.headers}
    assert "mylib" not in sys.modules
    (include / "mylib/value.cuh").write_text("#define MYLIB_VALUE 43\n")
    assert rtcompile.compile(USE, arch="sm_80", backend=backend).code != code.code


def test_providers_are_searched_after_cuda_and_before_the_shims(tmp_path):
    site = Wheels(tmp_path).cuda12().site
    include = provider(site, version="3.4", package="my-lib-headers")
    found = search(site)
    labels = [directory.label for directory in found.search]
    assert labels.index("cccl") < labels.index("headers:mylib") < labels.index("shims")
    assert SearchDir("headers:mylib", str(include)) in found.search
    assert found.versions["headers:mylib"] == "3.4"
    assert found.found_via["headers:mylib"] == "my-lib-headers"


def test_several_entries_give_several_folders(tmp_path):
    provider(tmp_path)
    write(tmp_path / "mylib/third_party/other.cuh")
    entries = tmp_path / "mylib-1.2.dist-info/entry_points.txt"
    entries.write_text(entries.read_text() + "mylib-others = mylib.third_party\n")
    folders = [directory for *_, directory in searching.provided([str(tmp_path)])]
    assert folders == [str(tmp_path / "mylib/include"), str(tmp_path / "mylib/third_party")]


def test_an_editable_install_is_found_where_its_source_is(site, tmp_path, monkeypatch):
    source = tmp_path / "src"
    provider(source)
    info = site / "mylib-1.2.dist-info"
    (source / info.name).rename(info)
    monkeypatch.syspath_prepend(str(source))
    assert [directory for *_, directory in searching.provided([str(site)])] == [
        str(source / "mylib/include")
    ]


def test_the_first_of_two_packages_with_one_name_is_used(tmp_path):
    provider(tmp_path / "a", package="one")
    provider(tmp_path / "b", package="two")
    found = list(searching.provided([str(tmp_path / "a"), str(tmp_path / "b")]))
    assert [package.metadata["Name"] for _, package, _ in found] == ["one"]


def test_doctor_shows_providers_and_what_is_wrong_with_them(tmp_path):
    include = provider(tmp_path)
    provider(tmp_path, "broken", declared="broken.nowhere")
    found = search(tmp_path)
    assert [d.label for d in found.search if d.is_provided] == ["headers:mylib"]
    reports = list(checks.toolkit_parts(found))
    shown = {report.name: report.detail for report in reports}
    assert shown["headers:mylib"] == f"1.2, mylib, {include}"
    said = "broken 1.2 says that its headers are in broken.nowhere"
    assert any(said in problem for problem in found.problems)
    assert any(said in report.detail for report in reports)
