"""What clangd is told: a database of the sources, and of kernels that are strings in Python files."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from rtcompile.cli import main
from rtcompile.editor import python_kernels

PYTHON = '''"""A docstring with __global__ void k() {} in it."""
import cupy

SOURCE = r"""
#include <cuda_fp16.h>
extern "C" __global__ void scale(__half* x, int n) {
    if (threadIdx.x < n) x[threadIdx.x] = __hmul(x[threadIdx.x], BY);
}
"""
kernel = cupy.RawKernel(SOURCE, "scale", options=("-DBY=x[0]", "-std=c++17"))
other = cupy.RawKernel('extern "C" __global__ void f() { __syncthreads(); }', "f")
computed = f"__global__ void {kernel}() {{}}"
two = ("__global__ void g() {\\n"
       "}\\n")
'''
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernels.py").write_text(PYTHON)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "not_ours.cu").write_text("")
    (tmp_path / "own.cu").write_text('#include "own.cuh"\n__global__ void k() { f(); }\n')
    (tmp_path / "own.cuh").write_text("__device__ inline void f() {}\n")
    return tmp_path


def _database(project: Path) -> dict[str, list[str]]:
    entries = json.loads((project / "compile_commands.json").read_text())
    return {Path(entry["file"]).name: entry["arguments"] for entry in entries}


def test_strings_are_found_with_their_lines_and_options():
    first, second, third = python_kernels.find(PYTHON)
    assert (first.name, first.line, first.options) == ("SOURCE", 4, ("-DBY=x[0]", "-std=c++17"))
    assert PYTHON.split("\n")[first.line + 1] == first.text.split("\n")[2]
    assert (second.name, second.line) == ("kernel", 11)
    assert (third.name, third.text) == ("two", "__global__ void g() { } ")


def test_sources_and_strings_are_in_the_database(project: Path, capsys):
    assert main(["clangd", "--arch", "sm_90a", "--", "-DSIZE=4"]) == 0
    found = _database(project)
    assert set(found) == {
        "own.cu",
        "own.cuh",
        "kernels.py.SOURCE.cu",
        "kernels.py.kernel.cu",
        "kernels.py.two.cu",
    }
    assert {"-DSIZE=4", "-DBY=x[0]", "-D__CUDA_ARCH__=900"} <= {*found["kernels.py.SOURCE.cu"]}
    assert "-DBY=x[0]" not in found["own.cu"]
    assert "kernels.py:4" in capsys.readouterr().out


def test_a_kernels_file_has_the_lines_of_the_python_file(project: Path):
    assert main(["clangd", "--json"]) == 0
    written = (project / ".rtcompile" / "kernels.py.SOURCE.cu").read_text().split("\n")
    assert written[6] == PYTHON.split("\n")[6]
    assert written[0] == f'#line 2 "{project}/kernels.py"'


def test_entries_of_other_files_are_kept_and_old_ones_of_ours_go(project: Path):
    theirs = {"directory": "/", "file": "/else.c", "arguments": ["cc", "/else.c"]}
    (project / "compile_commands.json").write_text(json.dumps([theirs]))
    assert main(["clangd"]) == 0
    (project / "kernels.py").write_text("")
    assert main(["clangd"]) == 0
    assert set(_database(project)) == {"else.c", "own.cu", "own.cuh"}


@pytest.mark.parametrize("text", ["{}", "not JSON", "[1]"])
def test_a_database_that_is_none_is_left_as_it_is(project: Path, text: str, capsys):
    (project / "compile_commands.json").write_text(text)
    assert main(["clangd"]) == 2
    assert "no compile database" in capsys.readouterr().err
    assert (project / "compile_commands.json").read_text() == text


def test_what_is_not_there_is_told(project: Path, capsys):
    assert main(["clangd", "nowhere"]) == 2
    assert "there is no such file" in capsys.readouterr().err


def test_a_python_file_that_does_not_parse_is_passed_over(project: Path):
    (project / "old.py").write_text("print 'x'")
    assert main(["clangd"]) == 0


def _checked(file: Path) -> str:
    if shutil.which("clangd") is None:
        pytest.skip("clangd is not installed")
    command = ["clangd", f"--check={file}", "--log=error"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=file.parent)
    return done.stderr if done.returncode else ""


def test_clangd_finds_nothing_wrong_in_the_examples(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for source in sorted((EXAMPLES / "sources").iterdir()):
        shutil.copy(source, tmp_path)
    shutil.copy(EXAMPLES / "wmma_gemm.py", tmp_path)
    assert main(["clangd", "--arch", "sm_90a", "--", "-DTYPE=double", "-DOP=fma"]) == 0
    files = [*tmp_path.glob("*.cu"), *(tmp_path / ".rtcompile").glob("*.cu")]
    assert len(files) >= 5
    assert [said for file in files if (said := _checked(file))] == []


def test_clangd_names_a_mistake_by_the_python_files_line(project: Path):
    (project / "kernels.py").write_text(PYTHON.replace("__hmul", "no_such_function"))
    assert main(["clangd"]) == 0
    assert "Line 7" in _checked(project / ".rtcompile" / "kernels.py.SOURCE.cu")
