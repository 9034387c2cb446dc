"""Trials of surroundings that few machines have: other file systems, clocks that jump, copies of the package."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trials.record import record

ROOT = Path(__file__).parents[2]

BUILD = """if True:
    import sys
    import rtcompile
    for number in range(4):
        source = f'extern "C" __device__ int v{number}; extern "C" __global__ void k() {{}}'
        program = rtcompile.compile(source, arch="sm_80", fallback="never")
        assert f"v{number}\\0".encode() in program.code
        print(bool(program.build.hit), end=" ")
"""
BUILT, FOUND = ["False"] * 4, ["True"] * 4


def python(program: str, *before: str, **environ: str) -> list[str]:
    """Return the words that a program printed, which must succeed and print no error."""
    done = subprocess.run(
        [*before, sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, **environ},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


MOUNTS = {
    "overlayfs": "mount -t tmpfs t w && mkdir w/l w/u w/w && mount -t overlay o -o lowerdir=w/l,upperdir=w/u,workdir=w/w m",
    "bindfs (FUSE)": "bindfs w m",
    "tmpfs of 12 inodes": "mount -t tmpfs -o nr_inodes=12 t m",
}


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="only root mounts")
@pytest.mark.parametrize("kind", MOUNTS)
def test_a_cache_on_another_file_system(kind: str, tmp_path: Path) -> None:
    if kind.startswith("bindfs") and not shutil.which("bindfs"):
        pytest.skip("bindfs is not installed")
    for name in "wm":
        (tmp_path / name).mkdir()
    command = shlex.join([sys.executable, "-c", BUILD])
    script = f"cd {shlex.quote(str(tmp_path))} && {MOUNTS[kind]} || exit 77; {command} && {command}"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "RTCOMPILE_CACHE_DIR": str(tmp_path / "m")},
    )
    if done.returncode == 77:
        pytest.skip(f"not mounted: {done.stderr}")
    words = done.stdout.split()
    is_full = "inodes" in kind
    good = done.returncode == 0 and words[:4] == BUILT and (is_full or words[4:] == FOUND)
    good = good and (is_full or not done.stderr)
    record(f"builds with the cache on {kind}", 8, 0 if good else 8)
    assert good, (words, done.stderr)


@pytest.mark.parametrize("jump", ["-400d", "+400d", "+0 x60"])
def test_clocks_that_jump(jump: str, tmp_path: Path) -> None:
    if not shutil.which("faketime"):
        pytest.skip("faketime is not installed")
    cache = {"RTCOMPILE_CACHE_DIR": str(tmp_path)}
    assert python(BUILD, **cache) == BUILT
    words = python(BUILD, "faketime", "-f", jump, **cache)
    record("process whose clock jumped", 1, words != FOUND)
    assert words == FOUND
    assert python(BUILD, **cache) == FOUND


def test_a_vendored_copy_under_another_name_beside_the_original(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "rtcompile", tmp_path / "rtcompile")
    shutil.copytree(ROOT / "include_shims", tmp_path / "rtcompile" / "include_shims")
    os.makedirs(tmp_path / "cache")
    environ = {"RTCOMPILE_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    assert python(BUILD, **environ) == BUILT
    copy = {**environ, "PYTHONPATH": str(tmp_path)}
    words = python(BUILD, **copy)
    record("copy of the package on the original's cache", 4, 0 if words == FOUND else 4)
    assert words == FOUND


def test_a_safe_path(tmp_path: Path) -> None:
    words = python(BUILD, PYTHONSAFEPATH="1", RTCOMPILE_CACHE_DIR=str(tmp_path))
    record("builds under PYTHONSAFEPATH", 4, 0 if words == BUILT else 4)
    assert words == BUILT


def test_a_thousand_kernels_that_nobody_uses(tmp_path: Path) -> None:
    pytest.importorskip("cupy")
    program = """if True:
        import rtcompile
        kept = [
            rtcompile.RawModule(code=f'extern "C" __global__ void k{n}() {{}}', arch="sm_80")
            for n in range(1_000)
        ]
        print(len(kept))
    """
    words = python(program, RTCOMPILE_CACHE_DIR=str(tmp_path))
    record("process of 1,000 kernels that nobody uses", 1, words != ["1000"])
    assert words == ["1000"]
