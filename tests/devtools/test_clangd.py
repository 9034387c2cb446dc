"""Tests of the section of `.clangd` with which clangd understands kernels."""

import shutil
import subprocess
from pathlib import Path

import pytest

from rtcompile.cli import main

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.cu").write_text('#include "own.cuh"\n__global__ void k() { f(); }\n')
    (tmp_path / "own.cuh").write_text("__device__ inline int f() { return threadIdx.x; }\n")
    return tmp_path


def _checked(file: Path) -> str:
    if shutil.which("clangd") is None:
        pytest.skip("clangd is not installed")
    # Without code actions, since some fail in clangd itself at an auto in a template.
    command = ["clangd", f"--check={file}", "--log=error", "--tweaks=none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=file.parent)
    return done.stderr if done.returncode else ""


def test_the_section_has_the_architecture_and_the_compilers_options(project, capsys):
    options = ["-DSIZE=4", "-I", "include", "-std=c++20", "-include", "first.cuh"]
    assert main(["clangd", "--arch", "sm_90a", "--", *options]) == 0
    assert str(project / ".clangd") in capsys.readouterr().out
    written = (project / ".clangd").read_text()
    for flag in ("-D__CUDA_ARCH__=900", "-DSIZE=4", f"-I{project}/include", "-std=c++20"):
        assert f'"{flag}"' in written
    assert '"-include",\n    "first.cuh"' in written


@pytest.mark.parametrize("end", ["\n", ""], ids=["line break", "none"])
def test_other_sections_are_kept_and_the_own_one_is_replaced(project, end):
    (project / ".clangd").write_text(f"CompileFlags:\n  Add: [-Wall]{end}")
    assert main(["clangd", "--", "-DONE"]) == 0
    assert main(["clangd", "--", "-DTWO"]) == 0
    given, ours = (project / ".clangd").read_text().split("---\n")
    assert given == "CompileFlags:\n  Add: [-Wall]\n"
    assert ("-DONE" in ours, "-DTWO" in ours) == (False, True)


def test_a_folder_that_is_not_there_is_an_error(project, capsys):
    assert main(["clangd", "--root", "nowhere"]) == 2
    assert "nowhere/.clangd: No such file" in capsys.readouterr().err


def test_clangd_finds_nothing_wrong_in_the_examples(project):
    for source in sorted((EXAMPLES / "sources").iterdir()):
        shutil.copy(source, project)
    assert main(["clangd", "--arch", "sm_90a", "--", "-DTYPE=double", "-DOP=fma"]) == 0
    files = sorted([*project.glob("*.cu"), *project.glob("*.cuh")])
    assert len(files) > 5
    assert [error for file in files if (error := _checked(file))] == []


def test_clangd_accepts_what_nvidias_compilers_accept(project):
    (project / "own.cu").write_text("""#include <cooperative_groups.h>
struct Barrier { int count; __device__ Barrier() : count(0) {} };
constexpr int threads() { return 128; }
template <class T> __global__ void __launch_bounds__(threads()) k(T* x) {
    __shared__ alignas(16) T tile[128];
    __shared__ Barrier barrier;
    auto cluster = cooperative_groups::this_cluster();
    tile[threadIdx.x] = isinf(float(x[0])) ? T(barrier.count) : x[cluster.block_rank()];
    x[threadIdx.x] = tile[127 - threadIdx.x];
}
template __global__ void k<float>(float*);
""")
    assert main(["clangd", "--arch", "sm_90a"]) == 0
    assert _checked(project / "own.cu") == ""


def test_clangd_names_a_mistake(project):
    (project / "own.cu").write_text("__global__ void k() {\n  no_such_function();\n}\n")
    assert main(["clangd"]) == 0
    assert "Line 2" in _checked(project / "own.cu")
