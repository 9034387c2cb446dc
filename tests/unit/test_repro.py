"""What killed a compiler can be done again from one folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import rtcompile
from rtcompile import repro
from rtcompile.core.units import CompileFailure
from rtcompile.errors import CompilerCrashed, CompileTimeout

SEGFAULT = "template <class T> struct B { friend bool operator==() = default; };\n"


def crash(tmp_path: Path) -> CompilerCrashed:
    """Crash NVRTC with a source that has a header of its own."""
    include = tmp_path / "include"
    include.mkdir()
    (include / "killer.h").write_text('#include "deeper.h"\n' + SEGFAULT)
    (include / "deeper.h").write_text("#pragma once\n")
    with pytest.raises(CompilerCrashed) as caught:
        rtcompile.compile(
            '#include "killer.h"\n',
            arch="sm_90",
            options=["-std=c++20", f"-I{include}", "-DX=1"],
            fallback="never",
        )
    shutil.rmtree(include)
    return caught.value


def test_a_crash_leaves_a_folder_that_crashes_again(tmp_path: Path) -> None:
    error = crash(tmp_path)
    assert error.reproducer is not None
    moved = tmp_path / "elsewhere"
    shutil.move(error.reproducer, moved)
    done = subprocess.run([moved / "run.sh"], cwd="/", capture_output=True, check=False)
    assert done.returncode == -11


def test_the_folder_says_what_happened_and_with_what(tmp_path: Path) -> None:
    error = crash(tmp_path)
    folder = Path(str(error.reproducer))
    report = json.loads((folder / "report.json").read_text())
    assert (report["kind"], report["signal"]) == ("crash", 11)
    assert "-DX=1" in report["options"]
    assert "nvrtc" in report["versions"]
    assert report["rtcompile"] == rtcompile.__version__
    assert sorted(path.name for path in (folder / "include").glob("*user0/*")) == [
        "deeper.h",
        "killer.h",
    ]
    assert "signal 11" in (folder / "README.txt").read_text()


def test_the_error_names_the_folder_and_what_to_try(tmp_path: Path) -> None:
    error = crash(tmp_path)
    assert f"Reproducer: {error.reproducer}" in str(error)
    assert "backend='nvcc'" in str(error)


def test_a_timeout_leaves_one_too() -> None:
    chain = "".join(f"typedef F{i} (*F{i + 1})(F{i}, F{i});\n" for i in range(40))
    source = f"typedef int (*F0)(int);\n{chain}__global__ void k(F40 f) {{}}"
    with pytest.raises(CompileTimeout, match=r"timeout=") as caught:
        rtcompile.compile(source, arch="sm_90", timeout=0.3)
    assert (Path(str(caught.value.reproducer)) / "run.sh").exists()


def failure(kind: str = "crash", command: tuple[str, ...] = ()) -> CompileFailure:
    return CompileFailure(kind, "died", command, "nvrtc")


def write(folder: Path, source: str = "source") -> str | None:
    return repro.write(
        failure(),
        source=source,
        name="kernel.cu",
        name_expressions=(),
        compiler="/lib/libnvrtc.so",
        search=(),
        versions={},
        folder=str(folder),
    )


def test_the_oldest_are_forgotten(tmp_path: Path) -> None:
    for number in range(25):
        folder = write(tmp_path, f"source {number}")
        os.utime(str(folder), (number, number))
    assert len(list(tmp_path.iterdir())) == 20
    assert (Path(str(folder))).exists()


def test_where_nothing_can_be_written_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert write(tmp_path / "file") is None


@pytest.mark.parametrize("kind", ["crash", "memory", "timeout"])
def test_every_death_comes_with_advice(kind: str) -> None:
    assert repro.advice(failure(kind)).endswith((".", "it."))


def test_a_mistake_needs_no_advice() -> None:
    assert repro.advice(failure("error")) == ""
