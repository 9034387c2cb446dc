"""Tests of compiling all of CuPy's kernels by rtcompile, on a device."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

cp = pytest.importorskip("cupy")

from rtcompile.cli import main  # noqa: E402
from tests.processes import ran  # noqa: E402

PROGRAM = """
import cupy as cp
a = cp.arange(64, dtype=cp.float32).reshape(8, 8) + 1
@cp.fuse()
def fused(x, y): return cp.sqrt(x * y) + 1
from cupyx import jit
@jit.rawkernel()
def doubled(x, size):
    i = jit.blockIdx.x * jit.blockDim.x + jit.threadIdx.x
    if i < size:
        x[i] = x[i] * 2
b = a.ravel().copy()
doubled((1,), (64,), (b, 64))
found = [
    float(a.sum()), float(cp.sort(-a.ravel())[0]), float(fused(a, a)[0, 1]), float(b[1]),
    int(cp.unique(cp.arange(9) % 3).size), float(cp.abs(1j * a).max()), float((a @ a)[0, 0]),
    float(cp.cumsum(a)[-1]), float(cp.argmax(a)),
    float(cp.RawKernel('extern "C" __global__ void k(float* x) { *x = 7; }', "k").kernel is None),
]
print(found)
"""


def run(*arguments: str, cache: Path, **more: str) -> subprocess.CompletedProcess[str]:
    folders = {"RTCOMPILE_CACHE_DIR": str(cache / "ours"), "CUPY_CACHE_DIR": str(cache / "cupys")}
    done = ran(sys.executable, *arguments, environ={**folders, **more})
    assert done.returncode == 0, done.stderr
    return done


def test_a_program_has_the_same_results_and_cupy_compiles_nothing(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)

    without = run(str(script), cache=tmp_path / "without")
    ours = run("-m", "rtcompile", "run", "--json", str(script), cache=tmp_path / "through us")

    assert ours.stdout == without.stdout
    assert len(json.loads(ours.stderr.splitlines()[-1])["builds"]) > 8
    assert not list(tmp_path.glob("through us/cupys/**/*.cubin"))


def test_a_second_run_compiles_nothing(tmp_path):
    script, cache = tmp_path / "program.py", tmp_path / "cache"
    script.write_text(PROGRAM)

    run("-m", "rtcompile", "run", str(script), cache=cache)

    run("-m", "rtcompile", "run", "--check", str(script), cache=cache)


def test_a_bundle_of_a_record_is_all_that_a_fresh_container_needs(tmp_path):
    script, record = tmp_path / "program.py", tmp_path / "kernels.json"
    script.write_text(PROGRAM)
    bundle = str(tmp_path / "kernels.rtc")
    run("-m", "rtcompile", "run", "--record", str(record), str(script), cache=tmp_path / "1")
    assert main(["bundle", str(record), "-o", bundle]) == 0

    words = ["-m", "rtcompile", "run", "--check", str(script)]
    run(*words, cache=tmp_path / "2", RTCOMPILE_BUNDLES=bundle)
