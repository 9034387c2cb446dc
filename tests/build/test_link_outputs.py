"""Tests of links whose output is relocatable code or LTO-IR, which newer nvJitLinks produce."""

import subprocess
from pathlib import Path

import pytest

import rtcompile
from rtcompile import toolkit
from rtcompile.compilers import nvjitlink
from rtcompile.errors import LinkError, ToolkitNotFound
from rtcompile.request.units import Compiled, CompileFailure, Limits, LinkInput
from rtcompile.request.values import Arch
from rtcompile.toolkit.model import Executable, Library, Toolchain
from tests.programs import CALLER, LIBRARY
from tests.toolkits import needs_host_compiler

LTOIR = LinkInput("ltoir", "part.ltoir", b"\xedCN\x7f" + bytes(60))

# Its results contain their kind and the options passed.
SOURCE = Path(__file__).with_name("fake_nvjitlink.cpp").read_text()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvjitlink")
    (folder / "nvjitlink.cpp").write_text(SOURCE)
    path = folder / "libnvJitLink.so.13"
    command = ["g++", "-shared", "-fPIC", "-o", path, folder / "nvjitlink.cpp"]
    subprocess.run(command, check=True)
    return path


def link(inputs: list[LinkInput], target: str, library: Path, version: str) -> object:
    toolchain = Toolchain(nvjitlink=Library(str(library), version))
    limits = Limits(timeout=60)
    return nvjitlink.link(inputs, Arch(9, 0), (), toolchain, limits=limits, target=target)


@pytest.mark.takes_seconds
@needs_host_compiler
@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("ltoir", "LinkedLTOIR -arch=sm_90 -lto"),
        ("object", "LinkedCubin -arch=sm_90 -lto -r"),
        ("cubin", "LinkedCubin -arch=sm_90 -lto"),
    ],
)
def test_nvjitlink_produces_the_requested_target(library, target, expected):
    outcome = link([LTOIR], target, library, "13.5.37")
    assert isinstance(outcome, Compiled)
    assert outcome.code.rstrip(b"\0").decode() == expected
    assert outcome.kind == target


@needs_host_compiler
@pytest.mark.parametrize(
    ("target", "version", "needed"), [("ltoir", "13.2.86", "13.3"), ("object", "13.1.115", "13.2")]
)
def test_an_older_nvjitlink_is_named_with_the_command_for_a_newer(library, target, version, needed):
    outcome = link([LTOIR], target, library, version)
    assert isinstance(outcome, CompileFailure)
    assert f"needs nvJitLink {needed} or newer; this is {version}" in outcome.log
    assert f'`pip install "nvidia-nvjitlink>={needed}"`' in outcome.log


@needs_host_compiler
def test_only_lto_ir_can_be_linked_to_lto_ir(library):
    ptx = LinkInput("ptx", "part.ptx", b".version 8.8\n.target sm_90\n")
    outcome = link([LTOIR, ptx], "ltoir", library, "13.5.37")
    assert isinstance(outcome, CompileFailure)
    assert "LTO-IR is linked from LTO-IR only; part.ptx is ptx" in outcome.log


def test_targets_that_only_nvjitlink_produces_are_not_given_to_nvcc():
    missing = Toolchain(missing={"nvjitlink": "nvJitLink not found"})
    with pytest.raises(ToolkitNotFound, match="nvJitLink not found"):
        nvjitlink.link([LTOIR], Arch(9, 0), (), missing, limits=Limits(), target="ltoir")


def test_code_too_new_for_nvccs_linker_names_the_nvjitlink_to_install(monkeypatch):
    def refuse(inputs: object, *others: object, **limits: object) -> CompileFailure:
        log = "nvlink fatal   : Input file '0-kernel.o' newer than toolkit (135 vs 130)"
        return CompileFailure("link", log, ("nvlink",), "nvcc")

    monkeypatch.setattr(nvjitlink.nvcc, "link", refuse)
    program = Executable("/usr/local/cuda/bin/nvcc", "13.0.88", "/usr/local/cuda/bin/nvcc")
    toolchain = Toolchain(nvcc=program, missing={"nvjitlink": "nvJitLink not found. `pip install`"})
    with pytest.raises(ToolkitNotFound, match="nvJitLink not found"):
        nvjitlink.link([LTOIR], Arch(9, 0), (), toolchain, limits=Limits())


@pytest.mark.needs_compiler
def test_without_any_linker_the_error_names_nvjitlink(monkeypatch):
    missing = {"nvjitlink": "nvJitLink not found", "nvcc": "nvcc not found"}
    crippled = toolkit.current()._replace(nvjitlink=None, nvcc=None, missing=missing)
    monkeypatch.setattr(toolkit, "current", lambda *_: crippled)
    with pytest.raises(ToolkitNotFound, match="nvJitLink not found"):
        rtcompile.compile(CALLER + "// no linker", arch="sm_90", link=[LIBRARY])


@pytest.mark.needs_compiler
@pytest.mark.parametrize("target", ["ltoir", "object"])
def test_relocatable_code_is_linked_or_the_error_names_the_linker_needed(target):
    linker = toolkit.current().nvjitlink
    if linker is None:
        pytest.skip("nvJitLink is not installed here")
    if linker.version_pair < (13, 3):
        with pytest.raises(LinkError, match="needs nvJitLink 13"):
            rtcompile.compile(CALLER, arch="sm_90", target=target, link=[LIBRARY])
        return
    part = rtcompile.compile(CALLER, arch="sm_90", target=target, link=[LIBRARY])
    assert part.kind == target
    whole = rtcompile.compile("", arch="sm_90", link=[part])
    assert whole.kind == "cubin"
    assert b"k\0" in whole.code
