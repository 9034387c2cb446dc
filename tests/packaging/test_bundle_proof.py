"""Tests of proving a bundle: its list, that it can be reproduced, and that its builds are found."""

import json
from pathlib import Path

import pytest

from rtcompile.cli import main
from tests.packages import Package
from tests.tables import from_table

pytestmark = pytest.mark.needs_compiler


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    return Package.in_current_folder(tmp_path, "proven_kernels", monkeypatch)


@pytest.fixture
def built(package: Package) -> Package:
    """The package with k.rtcb built for sm_80 and as PTX."""
    assert main(["bundle", package.name, "--arch", "sm_80,compute_80", "-o", "k.rtcb"]) == 0
    return package


def test_the_builds_of_targets_are_found_where_nothing_can_be_compiled(built, capsys):
    assert main(["bundle", "verify", "k.rtcb", built.name]) != 0
    assert "name the same path" in capsys.readouterr().err
    file = Path("k.rtcb").rename(built.bundle)
    assert main(["bundle", "verify", str(file), built.name]) == 0
    assert "found" in capsys.readouterr().out
    Path("more.cu").write_text("__global__ void not_bundled() {}")
    assert main(["compile", "more.cu", "--arch", "sm_80"]) == 0  # it is in the cache
    assert main(["bundle", "verify", str(file), "more.cu"]) != 0
    assert "more.cu for sm_80 is not found without a compiler" in capsys.readouterr().err


OWN_ARCHITECTURES = """
from rtcompile import CompileRequest
device = CompileRequest("__global__ void device() {}")
hopper = CompileRequest("__global__ void hopper() {}", arch="sm_90a")
"""


def test_a_build_is_verified_for_the_architectures_that_the_bundle_has_of_it(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("own_architectures.py").write_text(OWN_ARCHITECTURES)
    command = ["bundle", "own_architectures", "--arch", "sm_80", "-o", "own.rtcb"]
    assert main(command) == 0
    assert (
        main(
            [
                *command[:1],
                "own_architectures:device",
                "--arch",
                "sm_75",
                "-o",
                "own.rtcb",
                "--update",
            ]
        )
        == 0
    )
    capsys.readouterr()
    assert main(["bundle", "verify", "own.rtcb", "own_architectures", "--json"]) == 0
    found = {each["arch"] for each in json.loads(capsys.readouterr().out)["builds"]}
    assert found == {"sm_75", "sm_80", "sm_90a"}
    Path("more.cu").write_text("__global__ void not_bundled() {}")
    assert main(["bundle", "verify", "own.rtcb", "more.cu"]) != 0


def test_only_the_named_bundle_is_verified(built, capsys):
    Path("k.rtcb").rename(built.bundle)
    Path("other.cu").write_text("__global__ void k() {}")
    assert main(["bundle", "other.cu", "--arch", "sm_80", "-o", "other.rtcb"]) == 0
    assert main(["bundle", "verify", "other.rtcb", built.name]) != 0
    assert "but this one is other.rtcb: name the same path" in capsys.readouterr().err


def test_every_byte_is_verified(built, capsys):
    assert main(["bundle", "verify", "k.rtcb"]) == 0
    data = Path("k.rtcb").read_bytes()
    Path("k.rtcb").write_bytes(data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])
    for action in ("verify", "list"):
        assert (action, main(["bundle", action, "k.rtcb"])) == (action, 2)
        assert "it is damaged" in capsys.readouterr().err, action
    Path("k.rtcb").write_bytes(data + b"more")
    assert main(["bundle", "verify", "k.rtcb"]) == 2
    assert "belong to no build" in capsys.readouterr().err


@from_table
def test_wrong_arguments_of_verify_are_reported(package, arguments, message, capsys):
    assert main(["bundle", *arguments]) == 2
    assert message in capsys.readouterr().err
