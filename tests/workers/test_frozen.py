"""Tests of applications that PyInstaller freezes, whose `sys.executable` is the application itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rtcompile.toolkit import roots
from rtcompile.workers import process

ROOT = Path(__file__).parents[2]
APP = """
import rtcompile, sys
open("starts", "a").write("x")
try:
    print(rtcompile.compile("__global__ void k() {}", arch="sm_80").kind, sys.frozen)
except rtcompile.RtcompileError as error:
    print(type(error).__name__, error)
"""


def test_a_frozen_application_is_not_started_by_pathfinder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    where = roots.SearchContext({}, (), (), ())
    assert [*roots.by_pathfinder(where)] == []


def test_an_application_without_rtcompiles_files_is_told_how_to_keep_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        process, "__file__", str(tmp_path / "rtcompile" / "workers" / "process.pyc")
    )
    with pytest.raises(OSError, match="--collect-all rtcompile"):
        process.bare("rtcompile.workers.zygote:main")


@pytest.mark.slow
@pytest.mark.needs_nvcc
def test_a_pyinstaller_application_builds_and_starts_once(tmp_path: Path) -> None:
    pytest.importorskip("PyInstaller")
    (tmp_path / "app.py").write_text(APP)
    leave_out = [f"--exclude-module={name}" for name in ("cupy", "numpy", "IPython", "torch")]
    command = [sys.executable, "-m", "PyInstaller", "-y", f"--paths={ROOT}", "app.py"]
    command += ["--collect-all=rtcompile", *leave_out]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=300)
    path = f"{sys.base_prefix}/bin:{os.environ['PATH']}"
    done = subprocess.run(
        [tmp_path / "dist" / "app" / "app"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (tmp_path / "starts").read_text() == "x"
    # It has no NVRTC inside, so it builds where there is a toolkit.
    assert done.stdout.startswith(("cubin True", "ToolkitNotFound")), done.stderr
