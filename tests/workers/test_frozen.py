"""Tests of applications that PyInstaller freezes, whose `sys.executable` is the application itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rtcompile.extras.pyinstaller import hook_folders
from rtcompile.toolkit import roots
from rtcompile.workers import process
from tests.processes import python, ran

ROOT = Path(__file__).parents[2]
APP = """
open("starts", "a").write("x")
import glob, os, sys
import rtcompile
source = '#include <cuda_fp16.h>\\nextern "C" __global__ void k(__half *a) { *a = 1; }'
program = rtcompile.compile(source, arch="sm_80", fallback="never")
assert program.code[:4] == bytes((127, *b"ELF"))
mine = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != os.getpid()]
children = 0
for pid in mine:
    try:
        fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
        children += int(fields[1]) == os.getpid()
    except OSError:
        pass
print(program.build.backend, sys.frozen, children)
"""


@pytest.mark.parametrize(
    ("name", "value"), [("frozen", True), ("executable", "/usr/bin/app"), ("executable", "")]
)
def test_a_frozen_application_is_not_started_by_pathfinder(
    name: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, name, value, raising=False)
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    where = roots.SearchContext({}, (), (), ())
    assert [*roots.by_pathfinder(where)] == []


def test_an_application_without_rtcompiles_files_is_told_how_to_keep_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        process, "__file__", str(tmp_path / "rtcompile" / "workers" / "process.pyc")
    )
    with pytest.raises(OSError, match="hook for rtcompile"):
        process.bare("rtcompile.workers.zygote:main")


INSIDE = [
    "--collect-all=nvidia.cuda_nvrtc",
    "--collect-all=nvidia.cuda_runtime",
    "--copy-metadata=nvidia-cuda-nvrtc-cu12",
    "--copy-metadata=nvidia-cuda-runtime-cu12",
]


def test_the_entry_of_an_application_starts_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "rtcompile_worker", "--rtcompile-worker", raising=False)
    package = str(Path(process.__file__).parents[1])
    words = [sys.executable, "--rtcompile-worker", package, "os:getpid", "a"]
    assert process.bare("os:getpid", "a") == words
    entry = Path(hook_folders()[0], "rthooks", "worker_entry.py").read_text()
    program = f"import sys\n{entry}\nprint('the application')"
    words = [package, "builtins:print", "the", "worker"]
    for flag, printed in (
        ([], "the application\n"),
        (["--rtcompile-worker", *words], "the worker\n"),
    ):
        assert python(program, *flag).stdout == printed


@pytest.mark.slow
@pytest.mark.needs_compiler
@pytest.mark.parametrize("inside", [True, False], ids=["NVRTC inside", "without"])
def test_a_pyinstaller_application_is_its_own_worker(
    inside: bool, tmp_path: Path, cuda13_prefix: Path
) -> None:
    pytest.importorskip("PyInstaller")
    (tmp_path / "app.py").write_text(APP)
    leave_out = [f"--exclude-module={name}" for name in ("cupy", "numpy", "IPython", "torch")]
    command = [sys.executable, "-m", "PyInstaller", "-y", f"--paths={ROOT}", "app.py", *leave_out]
    command += [f"--additional-hooks-dir={folder}" for folder in hook_folders()]
    command += INSIDE * inside
    ran(*command, cwd=tmp_path, check=True, timeout=900)
    # Neither Python nor a compiler is on PATH.
    environ = {"PATH": "/nonexistent", "RTCOMPILE_CACHE_DIR": str(tmp_path / "cache")}
    if not inside:
        environ["CUDA_HOME"] = str(cuda13_prefix / "nvidia" / "cu13")
    done = ran(tmp_path / "dist/app/app", cwd=tmp_path, env=environ, timeout=300)
    # One child is the worker; no other process ran the application's own code.
    assert (done.stdout, done.stderr) == ("nvrtc True 1\n", "")
    assert (tmp_path / "starts").read_text() == "x"
