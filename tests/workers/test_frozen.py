"""Tests of frozen applications, whose `sys.executable` is the application itself."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rtcompile
from benchmarks import _frozen
from rtcompile.extras.pyinstaller import hook_folders
from rtcompile.workers import process
from tests.processes import python, ran

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
print(program.build.backend, getattr(sys, "frozen", False), program.build.hit, children)
"""


def test_an_application_without_rtcompiles_files_is_told_how_to_keep_them(monkeypatch, tmp_path):
    monkeypatch.setattr(
        process, "__file__", str(tmp_path / "rtcompile" / "workers" / "process.pyc")
    )
    with pytest.raises(OSError, match="hook for rtcompile"):
        process.bare("rtcompile.workers.zygote:main")


def test_an_application_with_only_compiled_modules_starts_workers_from_them(monkeypatch, tmp_path):
    package = tmp_path / "rtcompile"
    shutil.copytree(Path(process.__file__).parents[1], package)
    ran(sys.executable, "-m", "compileall", "-q", "-b", package, check=True)
    for file in package.rglob("*.py"):
        file.unlink()
    monkeypatch.setattr(process, "__file__", str(package / "workers" / "process.pyc"))
    ran(*process.bare("rtcompile.workers.system:new_name"), cwd=tmp_path, check=True)


def test_the_entry_of_an_application_starts_its_workers(monkeypatch):
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


def test_pyinstaller_is_told_of_the_extras_that_public_functions_need():
    hook = Path(hook_folders()[0], "hook-rtcompile.py").read_text()
    found: dict[str, Any] = {}
    tools = SimpleNamespace(collect_submodules=lambda *_: [], collect_data_files=lambda _: [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "PyInstaller", SimpleNamespace())
        patch.setitem(sys.modules, "PyInstaller.utils", SimpleNamespace())
        patch.setitem(sys.modules, "PyInstaller.utils.hooks", tools)
        exec(hook, found)
    assert f"rtcompile.{rtcompile._HOME['submit_to']}" in found["hiddenimports"]


def run(app: Path, path: str, cuda_home: Path | None) -> str:
    """Start an application with this PATH; return what it printed, and where it started itself again, that."""
    environ = {"PATH": path, "RTCOMPILE_CACHE_DIR": str(app.parent / "cache")}
    if cuda_home:
        environ["CUDA_HOME"] = str(cuda_home)
    folder = app.parent
    (folder / "starts").write_text("")
    done = ran(app, cwd=folder, env=environ, timeout=300)
    return done.stdout + done.stderr + (folder / "starts").read_text()


@pytest.fixture
def cuda_home(cuda13_prefix: Path) -> Path:
    return cuda13_prefix / "nvidia" / "cu13"


# The last number is that of the children: one is the worker. Each `x` is a start of the application's own code.
BUILT, FOUND = "nvrtc {} None 1\nx", "nvrtc {} disk 0\nx"


@pytest.mark.slow
@pytest.mark.needs_compiler
@pytest.mark.parametrize("inside", [True, False], ids=["NVRTC inside", "without"])
def test_a_pyinstaller_application_is_its_own_worker(inside, tmp_path, cuda_home):
    pytest.importorskip("PyInstaller")
    (tmp_path / "app.py").write_text(APP)
    words = _frozen.stated("pyinstaller") if inside else ["app.py"]
    app = _frozen.pyinstaller(tmp_path / "app.py", words)
    # Neither Python nor a compiler is on PATH.
    where = ("/nonexistent", None if inside else cuda_home)
    assert run(app, *where) == BUILT.format(True)
    assert run(app, *where) == FOUND.format(True)


@pytest.mark.slow
@pytest.mark.needs_compiler
@pytest.mark.parametrize("module", ["nuitka", "cx_Freeze"])
def test_another_frozen_application_builds_with_a_python_on_path(module, tmp_path, cuda_home):
    pytest.importorskip(module, reason="`make test-slow` installs it")
    (tmp_path / "app.py").write_text(APP)
    make = {"nuitka": _frozen.nuitka, "cx_Freeze": _frozen.cx_freeze}[module]
    app = make(tmp_path / "app.py")
    is_frozen = module == "cx_Freeze"  # Nuitka sets no `sys.frozen`
    where = (f"{sys.base_prefix}/bin", cuda_home)
    assert run(app, *where) == BUILT.format(is_frozen)
    assert run(app, *where) == FOUND.format(is_frozen)
