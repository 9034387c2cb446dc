"""Tests of a compiler's identity: it covers every file that affects the code, and no path."""

from __future__ import annotations

from pathlib import Path

import pytest

from rtcompile.toolkit import model
from rtcompile.toolkit.model import Executable, Library

FILES = (
    "bin/nvcc",
    "bin/nvcc.profile",
    "bin/cudafe++",
    "bin/ptxas",
    "bin/nvlink",
    "bin/fatbinary",
    "nvvm/bin/cicc",
    "nvvm/lib64/libnvvm.so",
    "nvvm/libdevice/libdevice.10.bc",
    "lib64/libcudadevrt.a",
)


def nvcc(root: Path) -> str:
    """Create a toolkit, if it is missing, and a host compiler; return NVCC's build."""
    for name in (*FILES, "g++"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(f"contents of {name}")
    program = Executable(str(root / "bin/nvcc"), "13.0.88", str(root / "bin/nvcc"))
    return model.of_nvcc(program, str(root / "g++"))


@pytest.mark.parametrize("name", [*FILES, "g++"])
def test_every_file_that_decides_what_nvcc_makes_is_in_its_build(name: str, tmp_path: Path) -> None:
    before = nvcc(tmp_path)
    (tmp_path / name).write_text("something else")
    assert nvcc(tmp_path) != before


def test_two_folders_with_the_same_files_have_the_same_build(tmp_path: Path) -> None:
    assert nvcc(tmp_path / "here") == nvcc(tmp_path / "there")


@pytest.mark.parametrize(
    "script",
    [
        pytest.param('#!/bin/sh\nexec {nvcc} -DX "$@"\n', id="adds a flag"),
        pytest.param('#!/bin/sh\nexport X=1\nexec {nvcc} "$@"\n', id="sets a variable"),
        pytest.param('#!/bin/sh\nexec {nvcc}-12 "$@"\n', id="leads elsewhere"),
    ],
)
def test_a_wrapper_script_of_nvcc_is_another_compiler(script: str, tmp_path: Path) -> None:
    before = nvcc(tmp_path)
    binary = str(tmp_path / "bin/nvcc")
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(script.format(nvcc=binary))
    program = Executable(str(wrapper), "13.0.88", binary)
    assert model.of_nvcc(program, str(tmp_path / "g++")) != before


def test_a_link_to_the_toolkit_has_the_same_build(tmp_path: Path) -> None:
    before = nvcc(tmp_path / "cuda-13.0")
    (tmp_path / "cuda").symlink_to("cuda-13.0")
    assert nvcc(tmp_path / "cuda") == before


def test_the_remembered_toolchain_watches_the_deciding_files(tmp_path: Path) -> None:
    nvcc(tmp_path)
    program = Executable(str(tmp_path / "bin/nvcc"), "13.0.88", str(tmp_path / "bin/nvcc"))
    assert {str(tmp_path / name) for name in FILES} <= set(model.files_of_nvcc(program))


@pytest.mark.parametrize("changed", ["libnvJitLink.so.12", "libcudadevrt.a"])
def test_the_linkers_build_covers_the_linker_and_the_device_runtime(
    changed: str, tmp_path: Path
) -> None:
    def build() -> str:
        library = Library(str(tmp_path / "libnvJitLink.so.12"), "12.9.86")
        return model.of_nvjitlink(library, str(tmp_path / "libcudadevrt.a"))

    for name in ("libnvJitLink.so.12", "libcudadevrt.a"):
        (tmp_path / name).write_text(name)
    before = build()
    (tmp_path / changed).write_text("another")
    assert build() != before


@pytest.mark.parametrize("at", [0, 10 << 20, -1], ids=["beginning", "size", "end"])
def test_the_size_and_both_ends_of_a_large_file_count(at: int, tmp_path: Path) -> None:
    data = bytearray(5 << 20)
    (tmp_path / "cicc").write_bytes(data)
    before = model.of_file(str(tmp_path / "cicc"))
    if at < len(data):
        data[at] = 1
    else:
        data.append(0)
    (tmp_path / "cicc").write_bytes(data)
    assert model.of_file(str(tmp_path / "cicc")) != before


def test_the_build_of_a_host_compiler_covers_its_folder(tmp_path: Path) -> None:
    (tmp_path / "gcc").write_text("one")
    before = model.of_host_compiler(f"{tmp_path}/")
    (tmp_path / "gcc").write_text("two")
    assert model.of_host_compiler(f"{tmp_path}/") != before
