"""``rtcompile bundle``: builds what is named, lists what is there, says what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rtcompile.bundles.file import Bundle
from rtcompile.cli import main
from tests.packages import DECLARATION, HEADER, SOURCE, Package


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    return Package.in_current_folder(tmp_path, "command_kernels", monkeypatch)


def run(*arguments: str) -> int:
    return main(["bundle", *arguments])


def test_a_packages_kernels_are_built_and_listed(package: Package, capsys):
    assert run(package.name, "--arch", "sm_80,compute_80", "-o", "k.rtcb", "--json") == 0
    built = json.loads(capsys.readouterr().out)
    assert [(b["arch"], b["kind"]) for b in built["builds"]] == [
        ("sm_80", "cubin"),
        ("sm_80", "ptx"),
    ]
    assert run("--list", "k.rtcb") == 0
    listed = capsys.readouterr().out
    assert "scale<float>, fill" in listed
    assert "k.rtcb: " in listed


def test_one_object_of_a_package_can_be_named(package: Package):
    assert run(f"{package.name}:module", "--arch", "sm_80", "-o", "k.rtcb") == 0
    assert [row.program for row in Bundle(os.path.abspath("k.rtcb")).rows()] == ["scale.cu"]


def test_a_source_takes_names_and_options_from_the_command_line(package: Package):
    arguments = ("-n", "scale<double>", "--arch", "sm_80", "-o", "k.rtcb", "--", "-DN=1")
    assert run(f"{package.name}/scale.cu", *arguments) == 0
    (row,) = Bundle(os.path.abspath("k.rtcb")).rows()
    assert row.names == ("scale<double>",)
    assert "D N=1" in row.options


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["command_kernels", "-o", "k.rtcb"], 2, "no architecture to build for"),
        (["command_kernels", "--arch", "sm_80"], 2, "name it by -o FILE"),
        (["nowhere", "--arch", "sm_80", "-o", "k.rtcb"], 2, "there is no module 'nowhere'"),
        (["--list", "nothing.rtcb"], 2, "nothing.rtcb: it is not there"),
        (["command_kernels", "--arch", "sm_80", "-o", "/proc/no/k.rtcb"], 2, "/proc/no"),
    ],
)
def test_what_is_wrong_is_told_and_has_a_code(package: Package, capsys, arguments, code, says):
    assert run(*arguments) == code
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("signature", "says"),
    [
        ("float x y z w, )( int", "'float x y z w' is no parameter of a kernel"),
        ("float* x", "the kernel in scale.cu takes parameters of 8, 4 bytes"),
    ],
)
def test_a_signature_that_no_call_could_fit_is_told(package: Package, capsys, signature, says):
    package.write("__init__.py", DECLARATION.replace("float* x, float value", signature))
    assert run(package.name, "--arch", "sm_80", "-o", "k.rtcb") == 2
    assert says in capsys.readouterr().err
    assert not os.path.exists("k.rtcb")


def test_a_kernel_that_does_not_compile_is_told(package: Package, capsys):
    package.write("scale.cu", SOURCE.replace("value;", "valeu;"))
    package.write("common.cuh", HEADER)
    assert run(package.name, "--arch", "sm_80", "-o", "k.rtcb") == 1
    assert 'scale.cu:7:71: error: identifier "valeu" is undefined' in capsys.readouterr().err
    assert not os.path.exists("k.rtcb")
