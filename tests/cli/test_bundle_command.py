"""Tests of ``rtcompile bundle``: it builds targets, lists the contents, and reports mistakes."""

import json
import os
from pathlib import Path

import pytest

import rtcompile
from rtcompile.cli import main
from rtcompile.cli.bundling import bundle
from rtcompile.extras.record.program import Recorder
from rtcompile.lookup.bundles import Bundle
from tests.packages import DECLARATION, HEADER, PLAIN, SOURCE, Package
from tests.tables import from_table

pytestmark = pytest.mark.needs_compiler


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    return Package.in_current_folder(tmp_path, "command_kernels", monkeypatch)


def run(*arguments: str) -> int:
    return main(["bundle", *arguments])


def test_a_packages_kernels_are_built_and_listed(package, capsys):
    assert run(package.name, "--arch", "sm_80,compute_80", "-o", "k.rtcb", "--json") == 0
    built = json.loads(capsys.readouterr().out)
    assert [(b["arch"], b["kind"]) for b in built["builds"]] == [
        ("sm_80", "cubin"),
        ("sm_80", "ptx"),
    ]
    assert run("list", "k.rtcb") == 0
    listed = capsys.readouterr().out
    assert "fill, scale<float>" in listed
    assert "k.rtcb: " in listed
    assert run("list", "k.rtcb", "--json") == 0
    cubin, ptx = json.loads(capsys.readouterr().out)["builds"]
    assert (cubin["kind"], cubin["arch"], ptx["kind"]) == ("cubin", "sm_80", "ptx")
    assert cubin["compiler"].startswith("nvrtc ")
    assert "std c++17" in cubin["options"]


def test_a_source_takes_architectures_names_and_options_from_the_command_line(package, capsys):
    source = f"{package.name}/scale.cu"
    archs = ("--arch", "sm_80", "--arch", "sm_90")
    assert run(source, *archs, "-n", "scale<int>", "-o", "k.rtcb", "--", "-DN=1") == 0
    capsys.readouterr()
    assert run("list", "k.rtcb", "--json") == 0
    listed = json.loads(capsys.readouterr().out)["builds"]
    assert [each["arch"] for each in listed] == ["sm_80", "sm_90"]
    assert all(each["names"] == "scale<int>" and "D N=1" in each["options"] for each in listed)


def test_one_object_of_a_package_can_be_named(package):
    assert run(f"{package.name}:module", "--arch", "sm_80", "-o", "k.rtcb") == 0
    assert [row.program for row in Bundle(os.path.abspath("k.rtcb")).rows()] == ["scale.cu"]


@from_table
def test_mistakes_are_reported_with_an_exit_code(package, capsys, arguments, code, message):
    assert run(*arguments) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("float x y z w, )( int", "'float x y z w' is not a parameter of a kernel"),
        ("float* x", "the kernel in scale.cu takes parameters of 8, 4 bytes"),
    ],
)
def test_a_signature_that_no_call_could_fit_is_reported(package, capsys, signature, message):
    package.write("__init__.py", DECLARATION.replace("float* x, float value", signature))
    assert run(package.name, "--arch", "sm_80", "-o", "k.rtcb") == 2
    assert message in capsys.readouterr().err
    assert not os.path.exists("k.rtcb")


def test_a_kernel_that_does_not_compile_is_reported(package, capsys):
    package.write("scale.cu", SOURCE.replace("value;", "valeu;"))
    package.write("common.cuh", HEADER)
    assert run(package.name, "--arch", "sm_80", "-o", "k.rtcb") == 1
    assert 'scale.cu:7:71: error: identifier "valeu" is undefined' in capsys.readouterr().err
    assert not os.path.exists("k.rtcb")


# --- what cannot be bundled ----------------------------------------------------------------------


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A record of four builds: two that can be bundled, and two that cannot."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.cuh").write_text("")
    recorder = Recorder.create("kernels.json")
    recorder.start()
    rtcompile.compile(PLAIN, arch="sm_80", name="plain.cu")
    rtcompile.compile(f'#include "{tmp_path}/own.cuh"\n' + PLAIN, arch="sm_80", name="beside.cu")
    part = rtcompile.CompileRequest(PART, options=("-dc",))
    rtcompile.compile(
        f"__device__ int f(); {PLAIN}",
        options=("-dc",),
        arch="sm_80",
        name="linked.cu",
        link=[part],
    )
    recorder.finish()
    return "kernels.json"


PART = "__device__ int f() { return 1; }"


def test_builds_that_cannot_be_bundled_are_named_and_the_rest_is_bundled_on_request(record, capsys):
    assert run(record, "-o", "k.rtc") == 2

    printed = " ".join(capsys.readouterr().err.split())
    assert "2 of 4 builds cannot be bundled" in printed
    assert "--skip-unbundleable" in printed
    assert "beside.cu, requested by test_bundle_command.py:" in printed
    assert "own.cuh by its path on this machine" in printed
    assert "linked.cu, requested by test_bundle_command.py:" in printed
    assert "link contains sources" in printed
    assert not os.path.exists("k.rtc")

    with pytest.warns(rtcompile.RtcompileWarning, match=r"(?s)2 of 4 .*beside\.cu.*linked\.cu"):
        assert run(record, "-o", "k.rtc", "--skip-unbundleable") == 0
    capsys.readouterr()
    assert run("list", "k.rtc", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert sorted(each["program"] for each in listed["builds"]) == ["kernel.cu", "plain.cu"]


@pytest.mark.needs_nvcc
def test_a_header_before_the_source_that_no_folder_has_cannot_be_bundled(tmp_path):
    (tmp_path / "own.cuh").write_text("#define N 1\n")
    request = rtcompile.CompileRequest(
        PLAIN, options=(f"-include={tmp_path}/own.cuh",), backend="nvcc"
    )
    with pytest.raises(rtcompile.InvalidRequest, match=r"own\.cuh by its path on this machine"):
        bundle([request], tmp_path / "k.rtc", archs=["sm_80"])
