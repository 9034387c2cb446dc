"""Tests of workers that start before a miss is planned, and end with their program."""

import os
import shutil
import signal
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rtcompile import toolkit
from rtcompile.build import pipeline, planned
from rtcompile.lookup import environment
from rtcompile.request.request import CompileRequest
from rtcompile.request.units import Limits
from rtcompile.workers import process
from rtcompile.workers.pool import Pool
from rtcompile.workers.process import ZygoteProcess
from tests import jobs
from tests.jobs import output, shell
from tests.lookups import CAPABILITY, build
from tests.processes import python

ROOT = Path(__file__).parents[2]

PARENT = "ps -o ppid= -p $PPID"


@pytest.fixture
def own_zygotes(scratch: Path) -> Iterator[None]:
    """Start without workers, as a new program."""
    own = jobs.Pool(1)
    yield
    own.close()
    assert list(scratch.iterdir()) == []


def started() -> ZygoteProcess:
    process.start()
    (zygote,) = ZygoteProcess.alive
    return zygote


@pytest.mark.usefixtures("own_zygotes")
def test_the_first_job_is_done_by_the_process_that_was_started_ahead_unless_it_was_killed():
    ahead = started()
    pool = Pool(jobs=1)
    assert int(output(pool.run(shell(PARENT), Limits()))) == ahead.pid
    process.start()
    assert ZygoteProcess.alive == {ahead}
    os.kill(ahead.pid, signal.SIGKILL)
    assert int(output(pool.run(shell(PARENT), Limits()))) != ahead.pid


@pytest.mark.takes_seconds
@pytest.mark.usefixtures("own_zygotes")
def test_a_zygote_started_ahead_serves_no_job_that_needs_another_library():
    ahead = started()
    process.start("another compiler")
    pool = Pool(jobs=1)
    assert int(output(pool.run(shell(PARENT), Limits()))) != ahead.pid


# --- when it is started --------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RTCOMPILE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("rtcompile.lookup.find.compute_capability", lambda: CAPABILITY)


def started_for(request: CompileRequest) -> list[str]:
    """Return the libraries for which a new process starts a worker before it plans the build."""
    environment.forget()
    loaded: list[str] = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(process, "start", loaded.append)
        monkeypatch.setattr(planned, "compile", lambda *_, **__: None)
        pipeline.build(request, environment.current().settings)
    return loaded


KERNEL = 'extern "C" __global__ void k(float* x) { *x = %s; }'


@pytest.mark.needs_compiler
@pytest.mark.usefixtures("cache")
def test_a_miss_and_an_edited_header_start_a_worker_and_a_hit_starts_none(tmp_path):
    (tmp_path / "value.h").write_text("#define VALUE 1")
    request = build('#include "value.h"\n' + KERNEL % "VALUE", f"-I{tmp_path}")
    library = toolkit.current().require_nvrtc().to_load()  # of the last build
    assert started_for(build(KERNEL % 1)) == []
    assert started_for(CompileRequest(KERNEL % 2)) == [library]
    (tmp_path / "value.h").write_text("#define VALUE 22")
    assert started_for(request) == [library]


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(
    "variable",
    [
        pytest.param(("RTCOMPILE_JIT", "0"), id="nothing may be compiled"),
        pytest.param(("RTCOMPILE_REMOTE", "file:///proc/nowhere"), id="a shared store may have it"),
        pytest.param(("RTCOMPILE_FALLBACK", "always"), id="NVCC will compile it"),
        pytest.param(("RTCOMPILE_BUNDLES", "/proc/nowhere"), id="a bundle may have it"),
    ],
)
def test_a_miss_that_may_not_need_nvrtc_starts_no_worker(variable, monkeypatch):
    monkeypatch.setenv(*variable)
    assert started_for(CompileRequest(KERNEL % 1)) == []


PROGRAM = """
    import sys
    from types import SimpleNamespace
    import cupy
    cupy.cuda.runtime = SimpleNamespace(
        getDevice=lambda: 0,
        deviceGetAttribute=lambda which, device: 9 if which == 75 else 0,
        CUDARuntimeError=cupy.cuda.runtime.CUDARuntimeError,
    )
    memoize = cupy.memoize
    cupy.memoize = lambda for_each_device=False: memoize()
    from rtcompile import RawKernel
    from rtcompile.frontends import lazy_code
    loaded = []
    lazy_code._load = lambda code, names: SimpleNamespace(get_function=lambda name: name)
    kernel = RawKernel('extern "C" __global__ void k() {}', "k")
    sys.addaudithook(
        lambda event, given: event == "os.posix_spawn" and print(
            "started", "rtcompile.build.planned" in sys.modules
        )
    )
    kernel.kernel
    print("workers" if "rtcompile.workers" in sys.modules else "none")
"""


@pytest.mark.needs_compiler
def test_a_worker_starts_before_the_imports_of_a_miss(tmp_path):
    pytest.importorskip("cupy")

    def run() -> list[str]:
        done: Any = python(PROGRAM, environ={"RTCOMPILE_CACHE_DIR": str(tmp_path / "cache")})
        assert done.returncode == 0, done.stderr
        return str(done.stdout).split("\n")[:-1]

    run()  # the search for a toolkit also starts programs
    for folder in ("index", "objects", "records"):
        shutil.rmtree(tmp_path / "cache" / folder, ignore_errors=folder != "index")
    assert run() == ["started False", "workers"]
    assert run() == ["none"]


# --- how it ends -------------------------------------------------------------------------------


@pytest.mark.takes_seconds
def test_a_program_that_ends_leaves_no_orphan(scratch):
    ends = """
        from rtcompile.request.units import Limits
        from rtcompile.workers import pool, process
        from tests.jobs import shell
        process.start()
        pool.run(shell("true"), Limits())
    """
    inherits = f"""
        import ctypes, os, subprocess, sys
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
        subprocess.run([sys.executable, "-c", {textwrap.dedent(ends)!r}], check=True)
        try:
            print("inherited", os.waitpid(-1, 0))
        except ChildProcessError:
            print("none")
    """
    done = python(inherits, cwd=ROOT, check=True)
    assert (done.stdout, done.stderr) == ("none\n", "")
    assert list(scratch.iterdir()) == []
