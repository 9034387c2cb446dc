"""Tests of reproducers: one folder repeats a compiler's crash."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import rtcompile
from rtcompile.build.failures import ADVICE
from rtcompile.compilers import nvcc, nvjitlink
from rtcompile.errors import CompilerCrashed
from rtcompile.extras import reproducer as repro
from rtcompile.files.headers import SearchDir
from rtcompile.request.units import CompileFailure
from rtcompile.store.folder import Folder
from rtcompile.toolkit.model import Library, Toolchain
from rtcompile.workers import pool

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


@pytest.mark.needs_compiler
def test_a_crash_leaves_a_folder_that_describes_it_and_crashes_again(tmp_path):
    error = crash(tmp_path)
    assert f"Reproducer: {error.reproducer}" in str(error)
    assert "backend='nvcc'" in str(error)
    folder = Path(str(error.reproducer))
    report = json.loads((folder / "report.json").read_text())
    assert (report["kind"], report["signal"]) == ("crash", 11)
    assert "-DX=1" in report["options"]
    assert "nvrtc" in report["versions"]
    assert report["rtcompile"] == rtcompile.__version__
    headers = sorted(path.name for path in (folder / "include").rglob("*.h"))
    assert headers == ["deeper.h", "killer.h"]
    assert "signal 11" in (folder / "README.txt").read_text()
    moved = tmp_path / "elsewhere"
    shutil.move(error.reproducer, moved)
    done = subprocess.run([moved / "run.sh"], cwd="/", capture_output=True, check=False)
    assert done.returncode == -11


@pytest.mark.needs_nvcc
@pytest.mark.parametrize("run", [1, 2], ids=["source", "PTX"])
def test_the_folder_has_what_nvcc_was_given(monkeypatch, run):
    ran: list[pool.Job] = []
    original = pool.run

    def dies_at_last(job: pool.Job, *rest: Any) -> Any:
        ran.append(job)
        return pool.Crash("crash", 11, "", b"") if len(ran) == run else original(job, *rest)

    monkeypatch.setattr(nvcc.pool, "run", dies_at_last)
    with pytest.raises(CompilerCrashed) as caught:
        rtcompile.compile(
            '#include "one.h"\ntemplate <int N> __global__ void k(int* p) { *p = ONE; }',
            arch="sm_80",
            headers={"one.h": "#define ONE 1\n"},
            name_expressions=["k<1>"],
            backend="nvcc",
        )
    folder = Path(str(caught.value.reproducer))
    subprocess.run([folder / "run.sh"], check=True)
    assert b"_Z1kILi1EEvPi" in (folder / "result").read_bytes()


@pytest.mark.needs_compiler
def test_the_folder_links_what_nvjitlink_was_given(monkeypatch):
    crashed = pool.Crash("crash", 11, "", b"")
    dying = SimpleNamespace(**{**vars(pool), "run": lambda *_: crashed})
    monkeypatch.setattr(nvjitlink, "pool", dying)
    with pytest.raises(CompilerCrashed) as caught:
        rtcompile.compile(
            "extern __device__ int f(int);\n__global__ void k(int* p) { *p = f(*p); }",
            arch="sm_80",
            options=["-dlto"],
            link=["__device__ int f(int x) { return x + 1; }"],
        )
    folder = Path(str(caught.value.reproducer))
    done = subprocess.run([folder / "run.sh"], capture_output=True, text=True, check=True)
    assert "nvJitLinkComplete returned 0" in done.stdout
    (folder / "1.ltoir").write_bytes(b"")
    done = subprocess.run([folder / "run.sh"], capture_output=True, text=True, check=True)
    assert "nvJitLinkComplete returned 0" not in done.stdout


def write(
    folder: Path, source: str = "source", trace: tuple[str, ...] = (), **given: Any
) -> str | None:
    library = Library(given.get("compiler", "/lib/libnvrtc.so"), "12.9")
    plan: Any = SimpleNamespace(
        request=rtcompile.CompileRequest(source),
        key_inputs=SimpleNamespace(name=given.get("name", "kernel.cu")),
        toolchain=Toolchain(nvrtc=library),
        search=given.get("search", ()),
    )
    failure = CompileFailure(given.get("kind", "crash"), "died", (), "nvrtc", trace=trace)
    return repro.write_reproducer(failure, plan, {}, ADVICE[failure.kind], Folder(str(folder)))


def test_the_oldest_reproducers_are_removed(tmp_path):
    for number in range(25):
        folder = write(tmp_path, f"source {number}")
        os.utime(str(folder), (number, number))
    assert len(list((tmp_path / "reproducers").iterdir())) == 20
    assert (Path(str(folder))).exists()


def test_a_long_source_and_an_unwritable_cache_have_no_reproducer(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    assert write(tmp_path / "file") is None
    monkeypatch.setattr(repro, "_MOST_BYTES", 100)
    assert write(tmp_path, "x" * 100)
    assert write(tmp_path, "x" * 101) is None


@pytest.mark.needs_compiler
def test_a_cache_in_memory_leaves_no_reproducer(tmp_path, monkeypatch):
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "1")
    assert crash(tmp_path).reproducer is None


def every_file(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_a_header_with_a_parent_path_is_copied_only_into_the_folder(tmp_path):
    include, home = tmp_path / "project/include", tmp_path / "home"
    include.mkdir(parents=True)
    home.mkdir()
    (home / ".bashrc").write_text("mine")
    (tmp_path / "x.h").write_text("the project's")
    cache = home / ".cache/rtcompile"
    up = "/".join([".."] * 40)
    before = every_file(tmp_path)
    folder = write(
        cache,
        trace=(f"{include}/../../x.h", f"{include}/{up}{home}/.bashrc", f"{include}/{up}/.bashrc"),
        search=(SearchDir("user0", str(include)),),
    )
    assert folder is not None
    assert (home / ".bashrc").read_text() == "mine"
    outside = {name for name in every_file(tmp_path) if not name.startswith("home/.cache/")}
    assert outside == before
    assert (Path(folder) / f"include{tmp_path}/x.h").read_text() == "the project's"


def test_no_planted_link_is_followed(tmp_path):
    cache, victim = tmp_path / "cache", tmp_path / "victim"
    folder = Path(str(write(cache)))
    victim.mkdir()
    (victim / "report.json").write_text("mine")
    shutil.rmtree(folder)
    folder.symlink_to(victim)
    assert write(cache) == str(folder)
    assert not folder.is_symlink()
    assert every_file(victim) == {"report.json"}
    assert (victim / "report.json").read_text() == "mine"


@pytest.mark.parametrize("part", ["", "reproducers"])
def test_no_reproducer_is_written_into_another_users_folder(tmp_path, part):
    cache = tmp_path / "cache"
    (cache / "reproducers").mkdir(parents=True)
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    os.chown(cache / part, 54321, -1)
    assert write(cache) is None
    assert every_file(cache) == set()


@pytest.mark.parametrize("name", ["run.sh", "report.json", "..", "a b.cu", "x\n.cu", "include"])
def test_the_programs_name_replaces_no_file_of_the_reproducer(tmp_path, name):
    folder = Path(str(write(tmp_path, name=name)))
    assert (folder / "kernel.cu").read_text() == "source"
    assert json.loads((folder / "report.json").read_text())["program"] == "kernel.cu"


def test_a_compilers_path_is_quoted_for_the_shell(tmp_path):
    folder = Path(str(write(tmp_path, compiler='/x"; touch planted; $(touch planted) "')))
    subprocess.run([folder / "run.sh"], capture_output=True, check=False)
    assert not (folder / "planted").exists()


def test_a_header_that_never_ends_is_left_out(tmp_path):
    os.mkfifo(tmp_path / "pipe.h")
    folder = write(tmp_path / "cache", trace=(str(tmp_path / "pipe.h"), "/dev/zero"))
    assert folder is not None
    assert not list(Path(folder).rglob("pipe.h"))


def test_the_same_crash_replaces_the_folder(tmp_path):
    header = tmp_path / "a.h"
    for text in ("one", "two"):
        header.write_text(text)
        folder = Path(str(write(tmp_path / "cache", trace=(str(header),))))
    assert (folder / f"include{header}").read_text() == "two"
    assert len(list((tmp_path / "cache/reproducers").iterdir())) == 1


@pytest.mark.parametrize("kind", ["crash", "memory", "timeout"])
def test_every_crash_has_advice(tmp_path, kind):
    folder = Path(str(write(tmp_path, kind=kind)))
    _, advice, _ = (folder / "README.txt").read_text().split("\n\n", 2)
    assert len(advice) > 100
    assert advice.endswith((".", "it."))
