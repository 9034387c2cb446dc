"""Tests of a compiler's identity: it covers every file that affects the code, and no path."""

from pathlib import Path

import pytest

from rtcompile.toolkit import model
from rtcompile.toolkit.model import Executable, Library

FILES = (
    *("bin/nvcc", "bin/nvcc.profile", "bin/cudafe++", "bin/ptxas", "bin/nvlink", "bin/fatbinary"),
    *("nvvm/bin/cicc", "nvvm/lib64/libnvvm.so", "nvvm/libdevice/libdevice.10.bc"),
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
def test_every_file_that_decides_what_nvcc_makes_is_in_its_build(name, tmp_path):
    before = nvcc(tmp_path)
    (tmp_path / name).write_text("something else")
    assert nvcc(tmp_path) != before


def test_equal_files_have_the_same_build_wherever_they_are(tmp_path):
    before = nvcc(tmp_path / "cuda-13.0")
    assert nvcc(tmp_path / "there") == before
    (tmp_path / "cuda").symlink_to("cuda-13.0")
    assert nvcc(tmp_path / "cuda") == before


@pytest.mark.parametrize(
    "script",
    [
        pytest.param('#!/bin/sh\nexec {nvcc} -DX "$@"\n', id="adds a flag"),
        pytest.param('#!/bin/sh\nexport X=1\nexec {nvcc} "$@"\n', id="sets a variable"),
        pytest.param('#!/bin/sh\nexec {nvcc}-12 "$@"\n', id="leads elsewhere"),
    ],
)
def test_a_wrapper_script_of_nvcc_is_another_compiler(script, tmp_path):
    before = nvcc(tmp_path)
    binary, wrapper = str(tmp_path / "bin/nvcc"), tmp_path / "wrapper"
    wrapper.write_text(script.format(nvcc=binary))
    program = Executable(str(wrapper), "13.0.88", binary)
    assert model.of_nvcc(program, str(tmp_path / "g++")) != before
    # The remembered toolchain watches the deciding files.
    watched = model.files_of_nvcc(Executable(binary, "13.0.88", binary))
    assert {str(tmp_path / name) for name in FILES} <= set(watched)


def test_the_linkers_build_covers_the_linker_and_the_device_runtime(tmp_path):
    linker, runtime = tmp_path / "libnvJitLink.so.12", tmp_path / "libcudadevrt.a"
    builds = []
    for texts in ("ab", "cb", "ad"):
        linker.write_text(texts[0])
        runtime.write_text(texts[1])
        builds.append(model.of_nvjitlink(Library(str(linker), "12.9.86"), str(runtime)))
    assert len({*builds}) == 3


def test_the_size_and_both_ends_of_a_large_file_count(tmp_path):
    builds, whole = [], bytes(5 << 20)
    for data in (whole, b"\1" + whole[1:], whole[:-1] + b"\1", whole + b"\0"):
        (tmp_path / "cicc").write_bytes(data)
        builds.append(model.of_file(str(tmp_path / "cicc")))
    assert len({*builds}) == 4


def test_the_build_of_a_host_compiler_covers_its_folder(tmp_path):
    (tmp_path / "gcc").write_text("one")
    before = model.of_host_compiler(f"{tmp_path}/")
    (tmp_path / "gcc").write_text("two")
    assert model.of_host_compiler(f"{tmp_path}/") != before


def test_the_build_of_nvrtc_covers_its_builtins_and_no_path(tmp_path):
    builds = []
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
        paths = [
            tmp_path / folder / name for name in ("libnvrtc-builtins.so.12.9", "libnvrtc.so.12")
        ]
        for path in paths:
            path.write_text(path.name)
        builtins, library = map(str, paths)
        builds.append(model.of_nvrtc(model.Library(library, "12.9.86", (builtins,))))
        paths[0].write_text("others")
        builds.append(model.of_nvrtc(model.Library(library, "12.9.86", (builtins,))))
    assert builds[:2] == builds[2:]
    assert builds[0] != builds[1]
    assert all(build.startswith("12.9.86 ") for build in builds)
