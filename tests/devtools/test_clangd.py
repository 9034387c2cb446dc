"""Tests of the compile database for clangd, with sources, and kernels that are strings in Python files."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from rtcompile.cli import main
from rtcompile.extras import devtools

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
    first, second, third = devtools.find(PYTHON)
    assert (first.name, first.line, first.options) == ("SOURCE", 4, ("-DBY=x[0]", "-std=c++17"))
    assert PYTHON.split("\n")[first.line + 1] == first.pieces[0].text.split("\n")[2]
    assert (second.name, second.line) == ("kernel", 11)
    assert (third.name, third.pieces[0].text) == ("two", "__global__ void g() { } ")


MADE = '''
ROWS, COLUMNS = 4, 8
SOURCE = f"""
constexpr int rows = {ROWS}, columns = {COLUMNS};
"""
SOURCE += r"""
__device__ int at(int r, int c) { return r * columns + c + NAMES; }
""".replace("NAMES", ", ".join("ab"))
INCLUDES = "#include <a.h>\\n#include <b.h>\\n"
KERNEL = """
__global__ void k() {}
"""
TEXTS = {"tile.h": "constexpr int tile = 4;", "sub/b.h": f"constexpr int b = {ROWS};", "../c.h": ""}
OPTIONS = ("-DX=1",)


def build(n):
    defines = f"#define N {n}"
    rtcompile.compile(INCLUDES + defines + KERNEL, options=OPTIONS)
    rtcompile.compile(SOURCE, headers=TEXTS, include_dirs=["/include"])
    text = f"__global__ void f{n}() {{}}"
    text = """__global__ void first() {}"""
    return text


def other():
    text = """__global__ void second() {}"""
    return text
'''


def test_concatenated_literals_are_one_source():
    source, kernel, first, second = devtools.find(MADE)
    assert [piece.line for piece in source.pieces] == [3, 6]
    assert "rows = 4, columns = 8;" in source.pieces[0].text
    assert dict(source.headers)["sub/b.h"] == "constexpr int b = 4;"
    assert source.options == ("-I/include",)
    assert (kernel.name, kernel.options, len(kernel.pieces)) == ("KERNEL", ("-DX=1",), 2)
    assert kernel.pieces[0].text.startswith("#include <a.h>\n")
    assert ["first" in first.pieces[0].text, "second" in second.pieces[0].text] == [True, True]


def test_concatenated_literals_have_the_lines_of_the_python_file(project):
    (project / "kernels.py").write_text(MADE.replace(', "../c.h": ""', ""))
    assert main(["clangd"]) == 0
    lines = MADE.split("\n")
    for name, marker in (("SOURCE", "__device__ int at"), ("KERNEL", "__global__ void k")):
        written = (project / f".rtcompile/kernels.py.{name}.cu").read_text().split("\n")
        (at,) = [number for number, line in enumerate(written) if line.startswith(marker)]
        assert lines[at].startswith(marker)
    assert written[at - 3 : at - 1] == ["#include <a.h>", "#include <b.h>"]
    folder = project / ".rtcompile/kernels.py.SOURCE.headers"
    assert (folder / "sub/b.h").read_text() == "constexpr int b = 4;"
    assert f"-I{folder}" in _database(project)["kernels.py.SOURCE.cu"]


def test_invalid_headers_are_not_written(project):
    (project / "kernels.py").write_text(MADE)
    assert main(["clangd"]) == 0
    assert not list((project / ".rtcompile").rglob("*.h"))


def test_a_run_for_one_file_leaves_the_others_in_the_database(project):
    (project / "more.py").write_text("\nSOURCE = '__global__ void more() {}'\n")
    assert main(["clangd"]) == 0
    assert main(["clangd", "kernels.py", "--", "-DONLY=1"]) == 0
    found = _database(project)
    assert "-DONLY=1" in found["kernels.py.SOURCE.cu"]
    assert "-DONLY=1" not in found["more.py.SOURCE.cu"]
    (project / "more.py").unlink()
    assert main(["clangd", "kernels.py"]) == 0
    assert "more.py.SOURCE.cu" not in _database(project)


def test_clangds_configuration_is_added_to_once(project):
    (project / ".clangd").write_text("CompileFlags:\n  Add: [-Wall]\n")
    for _ in range(2):
        assert main(["clangd"]) == 0
    given, ours = (project / ".clangd").read_text().split("---\n")
    assert given == "CompileFlags:\n  Add: [-Wall]\n"
    assert "shared_var_init" in ours


def test_sources_and_strings_are_in_the_database(project, capsys):
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
    written = (project / ".rtcompile" / "kernels.py.SOURCE.cu").read_text().split("\n")
    assert written[6] == PYTHON.split("\n")[6]
    assert written[0] == f'#line 2 "{project}/kernels.py"'


def test_entries_of_other_files_are_kept_and_outdated_ones_removed(project):
    theirs = {"directory": "/", "file": "/else.c", "arguments": ["cc", "/else.c"]}
    (project / "compile_commands.json").write_text(json.dumps([theirs]))
    assert main(["clangd"]) == 0
    (project / "kernels.py").write_text("")
    assert main(["clangd"]) == 0
    assert set(_database(project)) == {"else.c", "own.cu", "own.cuh"}


@pytest.mark.parametrize("text", ["{}", "not JSON", "[1]"])
def test_an_invalid_database_is_left_unchanged(project, text, capsys):
    (project / "compile_commands.json").write_text(text)
    assert main(["clangd"]) == 2
    assert "not a compile database" in capsys.readouterr().err
    assert (project / "compile_commands.json").read_text() == text


def test_paths_without_kernels_are_reported_and_unreadable_files_skipped(project, capsys):
    assert main(["clangd", "nowhere"]) == 2
    assert "there is no such file" in capsys.readouterr().err
    (project / "docs").mkdir()
    assert main(["clangd", "docs"]) == 0
    assert "docs: no .cu or .cuh file, and no kernel" in capsys.readouterr().out
    (project / "old.py").write_text("print 'x'")
    os.mkfifo(project / "pipe.py")
    (project / "gone.cu").symlink_to("nowhere.cu")
    assert main(["clangd"]) == 0
    assert not any("gone.cu" in file for file in _database(project))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xef\xbb\xbfK = '__global__ void k() {}'\n", id="with a BOM"),
        pytest.param(b"# coding: latin-1\nK = '/* \xe4 */ __global__ void k() {}'\n", id="latin-1"),
    ],
)
def test_a_python_file_is_read_in_its_encoding(project, data):
    (project / "encoded.py").write_bytes(data)
    assert main(["clangd", "encoded.py"]) == 0
    assert any("encoded.py.K.cu" in file for file in _database(project))


@pytest.mark.takes_seconds
def test_a_long_file_is_read_in_time_that_grows_with_its_length():
    source = "".join(f"K{n} = '__global__ void k() {{}}'\n" for n in range(3000))
    began = time.thread_time()
    assert len(devtools.find(source)) == 3000
    assert time.thread_time() - began < 5  # 31 s if each string splits the file into lines


def _checked(file: Path) -> str:
    if shutil.which("clangd") is None:
        pytest.skip("clangd is not installed")
    # Without code actions, since some fail in clangd itself at an auto in a template.
    command = ["clangd", f"--check={file}", "--log=error", "--tweaks=none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=file.parent)
    return done.stderr if done.returncode else ""


# CuTe and CUTLASS take clangd 14 ten seconds each: benchmarks/clangd.py checks all examples.
QUICK = ("wmma_gemm", "sm90_gemm", "generated_headers", "pipelined_matmul", "curand_pi")


def test_clangd_finds_nothing_wrong_in_the_examples(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for source in sorted((EXAMPLES / "sources").iterdir()):
        shutil.copy(source, tmp_path)
    for name in QUICK:
        shutil.copy(EXAMPLES / f"{name}.py", tmp_path)
    assert main(["clangd", "--arch", "sm_90a", "--", "-DTYPE=double", "-DOP=fma"]) == 0
    files = [*tmp_path.glob("*.cu"), *(tmp_path / ".rtcompile").glob("*.cu")]
    assert len(files) == 4 + len(QUICK)
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


def test_clangd_names_a_mistake_by_the_python_files_line(project):
    (project / "kernels.py").write_text(PYTHON.replace("__hmul", "no_such_function"))
    assert main(["clangd"]) == 0
    assert "Line 7" in _checked(project / ".rtcompile" / "kernels.py.SOURCE.cu")
