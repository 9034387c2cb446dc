"""Tests of proving a bundle: its GPUs, its provenance, and that it can be reproduced."""

import json
import sys
from pathlib import Path

import pytest

from rtcompile.build import from_bundle as file
from rtcompile.build.from_bundle import Row
from rtcompile.cli import main, to_bundle
from rtcompile.lookup.bundles import Bundle
from rtcompile.request.arch import first_release, generations
from rtcompile.request.values import Arch
from tests.packages import SOURCE, Package
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


def _rows(monkeypatch: pytest.MonkeyPatch, *made: tuple[str, str, str]) -> Bundle:
    rows = [
        Row("key", Arch.parse(arch), kind, "nvrtc", compiler, 12, "k.cu", "s", (), ())
        for arch, kind, compiler in made
    ]
    monkeypatch.setattr(file, "rows", lambda _: rows)
    return Bundle("made-up.rtcb")


NVRTC = "nvrtc 12.9.86 CL-1"


@from_table
def test_each_gpu_gets_what_it_and_its_driver_run(monkeypatch, made, expected):
    bundle = _rows(monkeypatch, *made)
    served = {each.gpu: (each.code, each.driver) for each in to_bundle.matrix(bundle)}
    assert {gpu: served[gpu] for gpu in expected} == expected


def test_the_generations_are_the_current_ones():
    found = generations()
    assert {(7, 5), (8, 6), (9, 0), (10, 3), (11, 0), (12, 1)} <= {*found}
    assert (10, 1) not in found
    assert first_release((11, 0)) == (12, 8)  # under its first name, 10.1


def test_a_bundle_shows_its_gpus_and_its_provenance_and_can_be_reproduced(built, capsys):
    capsys.readouterr()
    assert main(["bundle", "matrix", "k.rtcb", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["builds"]
    by_gpu = {row["gpu"]: row["code"] for row in rows}
    expected = ["nothing", "cubin sm_80", "ptx compute_80"]
    assert [by_gpu[gpu] for gpu in ("7.5", "8.6", "9.0")] == expected
    assert main(["bundle", "provenance", "k.rtcb"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["bundles"]
    cubin, _ = found["builds"]
    assert (cubin["kind"], cubin["arch"]) == ("cubin", "sm_80")
    assert cubin["compiler"].startswith("nvrtc ")
    assert "common.cuh" in [header["name"] for header in cubin["headers"]]
    assert all(len(header["digest"]) == 64 for header in cubin["headers"])
    assert set(cubin["name expressions"]) == {"scale<float>", "fill"}
    assert main(["bundle", "verify", "k.rtcb", built.name, "--rebuild"]) == 0
    assert "2 of 2 builds are the same, byte by byte" in capsys.readouterr().out


def test_another_header_or_source_is_reported(built, capsys):
    text = "__device__ inline int index() { return threadIdx.x; }\n"
    built.write("common.cuh", text)
    assert main(["bundle", "verify", "k.rtcb", built.name, "--rebuild"]) == 1
    assert "differs: made with another common.cuh" in capsys.readouterr().out
    built.write("scale.cu", SOURCE.replace("*=", "+="))
    for loaded in [name for name in sys.modules if name.split(".")[0] == built.name]:
        del sys.modules[loaded]
    assert main(["bundle", "verify", "k.rtcb", built.name, "--rebuild"]) == 1
    output = capsys.readouterr().out
    assert "not among the targets" in output
    assert "0 of 2" in output


def test_the_builds_of_targets_are_found_where_nothing_can_be_compiled(built, capsys):
    assert main(["bundle", "verify", "k.rtcb", built.name]) != 0
    assert "name the same path" in capsys.readouterr().err
    file = Path("k.rtcb").rename(built.bundle)
    assert main(["bundle", "verify", str(file), built.name]) == 0
    assert "found" in capsys.readouterr().out
    Path("more.cu").write_text("__global__ void not_bundled() {}")
    assert main(["compile", "more.cu", "--arch", "sm_80"]) == 0  # it is in the cache
    assert main(["bundle", "verify", str(file), "more.cu"]) != 0
    assert "RTCOMPILE_JIT=0" in capsys.readouterr().err


def test_every_byte_is_verified(built, capsys):
    assert main(["bundle", "verify", "k.rtcb"]) == 0
    data = Path("k.rtcb").read_bytes()
    Path("k.rtcb").write_bytes(data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])
    for action in ("verify", "list", "matrix", "provenance"):
        assert (action, main(["bundle", action, "k.rtcb"])) == (action, 2)
        assert "it is damaged" in capsys.readouterr().err, action
    Path("k.rtcb").write_bytes(data + b"more")
    assert main(["bundle", "verify", "k.rtcb"]) == 2
    assert "belong to no build" in capsys.readouterr().err


@from_table
def test_wrong_arguments_of_verify_are_reported(package, arguments, message, capsys):
    assert main(["bundle", *arguments]) == 2
    assert message in capsys.readouterr().err
