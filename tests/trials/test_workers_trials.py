"""Trials of workers under attack and under limits: no wrong result, no hang, no orphan.

``RTCOMPILE_TEST_TRIALS=full`` repeats the kills more often than an everyday run.
"""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from rtcompile import cubin, toolkit
from rtcompile.compilers import nvrtc
from rtcompile.request.units import Compiled, CompileFailure, Limits, TranslationUnit
from rtcompile.request.values import Arch
from rtcompile.workers import pool as workers
from rtcompile.workers.pool import Job
from rtcompile.workers.process import ZygoteProcess
from tests import processes
from tests.jobs import Pool, children, descendants, ended
from tests.processes import ran
from tests.toolkits import needs_host_compiler
from tests.trials.record import tally, times

TRIALS = times(4, 100)
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, scratch: Path) -> Pool:
    """The pool of this process, for one test."""
    pool = Pool(jobs=4)
    monkeypatch.setattr(workers, "_pool", pool)
    return pool


def build(number: int) -> Compiled | CompileFailure:
    arch = Arch(7, 5)
    source = f'extern "C" __global__ void k{number}() {{}}'
    unit = TranslationUnit(source, "k.cu", (f"-arch={arch}",), (), "cubin", arch)
    return nvrtc.compile(unit, toolkit.current().require_nvrtc(), limits=Limits())


def is_right(outcome: Compiled | CompileFailure, number: int) -> bool:
    assert isinstance(outcome, Compiled), outcome
    return cubin.kernel_symbols(outcome.code) == [f"k{number}"]


def zygote() -> int:
    """Wait until this process has a zygote; return its process id."""
    while not ZygoteProcess.alive:
        threading.Event().wait(0.0005)
    return next(iter(ZygoteProcess.alive)).pid


def child_of(pid: int, stop: Callable[[], bool]) -> int:
    """Wait until a process has a child, or until it no longer matters (0)."""
    while not stop():
        if found := children(pid):
            return found[0]
    return 0


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def trial(pool: Pool, number: int, attack: Callable[[Callable[[], bool]], int]) -> int:
    """Build while `attack` kills a process; return the process that it killed."""
    outcomes: list[Compiled | CompileFailure] = []
    builder = threading.Thread(target=lambda: outcomes.append(build(number)))
    builder.start()
    victim = attack(lambda: not builder.is_alive())
    builder.join(120)
    assert outcomes, "the build does not end"
    (outcome,) = outcomes
    if isinstance(outcome, CompileFailure):
        assert (outcome.kind, outcome.signal) == ("memory", 9)
    else:
        assert is_right(outcome, number)
    return victim


@pytest.mark.parametrize("delay", ["at once", "at random"])
def test_a_worker_killed_while_it_compiles(pool, delay):
    assert is_right(build(0), 0)
    shuffled = random.Random(1)

    def attack(done: Callable[[], bool]) -> int:
        victim = child_of(zygote(), done)
        if delay == "at random":
            threading.Event().wait(shuffled.uniform(0, 0.03))
        if victim:
            kill(victim)
        return victim

    with tally("worker killed while it compiles") as counted:
        for number in range(TRIALS):
            with counted():
                victim = trial(pool, number, attack)
                assert victim == 0 or ended(victim)
                assert is_right(build(number), number)
    pool.close()


@pytest.mark.parametrize("stage", ["starting", "idle", "compiling"])
def test_a_zygote_killed(pool, scratch, stage):

    def attack(done: Callable[[], bool]) -> int:
        if stage == "idle":
            return 0
        victim = zygote()
        if stage == "compiling":
            worker = child_of(victim, done)
            kill(victim)
            return worker
        kill(victim)
        return victim

    with tally(f"zygote killed while {stage}") as counted:
        for number in range(TRIALS):
            with counted():
                if stage == "starting":
                    for each in pool.zygotes:
                        each.close()
                else:
                    assert is_right(build(number), number)
                if stage == "idle":
                    kill(zygote())
                victim = trial(pool, number, attack)
                assert victim == 0 or ended(victim)
    pool.close()
    assert list(scratch.glob("rtcompile-*")) == []


def test_a_caller_killed_at_any_moment(scratch):
    script = """
        import threading
        from tests.trials.test_workers_trials import *
        threads = [threading.Thread(target=build, args=(i,)) for i in range(8)]
        [thread.start() for thread in threads]
        print(zygote(), flush=True)
        [thread.join() for thread in threads]
        print("done", flush=True)
        sys.stdin.read()
    """
    with tally("caller killed at any moment") as counted:
        for number in range(TRIALS):
            program = python(script)
            assert program.stdout is not None
            with counted():
                mother = int(program.stdout.readline())
                threading.Event().wait(0.012 * number % 0.1)
                workers_now = children(mother)
                program.kill()
                program.communicate()
                assert ended(mother)
                assert all(ended(worker) for worker in workers_now)
    assert list(scratch.glob("rtcompile-*")) == []


NVCC = """
from tests.trials.test_workers_trials import *
import rtcompile
from tests.jobs import ENDLESS
print("ready", flush=True)
rtcompile.compile(ENDLESS, fallback="always", arch="sm_80")
"""


@pytest.mark.needs_nvcc
def test_all_killed_at_once_while_nvcc_runs(scratch):
    with tally("caller, zygote and worker killed at once while nvcc runs") as counted:
        for number in range(times(2, 50)):
            program = python(NVCC)
            assert program.stdout.readline() == "ready\n"
            with counted():
                family = until_it_runs(program.pid, "cicc" if number % 2 else "nvcc")
                for pid in (program.pid, *family):
                    with suppress(OSError):  # the process has ended
                        if Path(f"/proc/{pid}/comm").read_text().startswith("python"):
                            kill(pid)
                program.communicate()
                assert all(ended(pid) for pid in family)
    # The next cleanup removes the rest.
    pool = Pool(jobs=1)
    pool.run(Job("", {}), Limits())
    pool.close()
    assert list(scratch.glob("rtcompile-*")) == []


def until_it_runs(pid: int, name: str) -> list[int]:
    """Wait until a process has a descendant that runs a program; return all descendants."""
    while True:
        family = descendants(pid)
        with suppress(OSError):
            if any(Path(f"/proc/{each}/comm").read_text().strip() == name for each in family):
                return family


def python(script: str) -> subprocess.Popen[str]:
    return processes.started(sys.executable, "-c", textwrap.dedent(script), cwd=ROOT)


def limited(script: str, **limits: int) -> str:
    """Run a script under resource limits; return its output."""

    def limit() -> None:
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))

    done = processes.python(script, cwd=ROOT, preexec_fn=limit)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


BUILD = """
    from tests.trials.test_workers_trials import *
    print(is_right(build(1), 1))
"""

WITH_PCH = """
    from tests.compilers.test_pch import *
    import pathlib, tempfile
    hasten(pytest.MonkeyPatch())
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "user").mkdir()
    builder = Builder(folder / "cache", folder / "user")
    outcomes = []
    for _ in range(4):
        outcomes.append(builder.compiled(PREFIX + KERNEL))
    print(used(outcomes[-1]), len({outcome.code for outcome in outcomes}))
"""


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"AS": 1 << 30}, id="address space"),
        pytest.param({"NOFILE": 32}, id="open files"),
        pytest.param({"STACK": 256 << 10}, id="stack"),
        pytest.param({"CORE": 0}, id="core dumps"),
    ],
)
def test_builds_work_under_limits(limits):
    assert limited(BUILD, **limits) == "True"


def test_too_little_address_space_and_no_unlimited_stack_prevents_precompiled_headers():
    assert limited(WITH_PCH, AS=1 << 30) == "False 1"
    assert limited(WITH_PCH, STACK=resource.RLIM_INFINITY) == "True 1"


def with_mounts(mounts: str, script: str) -> str:
    """Run a script with other file systems mounted; return its output."""
    mounts = f'{mounts} && exec "$0" -c "$1"'
    command = ["unshare", "--mount", "sh", "-c", mounts, sys.executable, textwrap.dedent(script)]
    try:
        done = processes.ran(*command, cwd=ROOT, environ={"PYTHONPATH": str(ROOT)})
    except FileNotFoundError:
        pytest.skip("util-linux is not installed")
    if done.stderr.startswith(("unshare", "mount", "umount")):
        pytest.skip(f"may not mount file systems here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "mounts",
    [
        pytest.param("umount /dev/shm", id="no shared memory"),
        pytest.param("mount -t tmpfs none /proc", id="an empty /proc"),
        pytest.param('mount -t tmpfs -o ro none "$TMPDIR"', id="a TMPDIR that is read-only"),
    ],
)
def test_builds_work_without(mounts):
    assert with_mounts(mounts, BUILD) == "True"


@needs_host_compiler
def test_twenty_thousand_options():
    script = """
        import rtcompile
        options = tuple(f"-DX{i}=1" for i in range(20_000))
        for fallback in ("never", "always"):
            try:
                code = rtcompile.compile("__global__ void k() {}", arch="sm_80", options=options,
                                         fallback=fallback)
                print(code.kind)
            except rtcompile.CompileError as error:
                print(str(error).splitlines()[0])
    """
    nvrtc_output, nvcc_output = limited(script).splitlines()
    assert nvrtc_output == "cubin"
    assert "nvcc" in nvcc_output


# One user for each process of the tests, since a limit counts all processes of a user.
NOBODY = 54321 + 100 * (os.getpid() % 10_000)
# The other user may only read root's files, to run a Python in root's home.
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
    "--securebits=+no_setuid_fixup",
)


def as_nobody(script: str, scratch: Path, processes: int) -> str:
    """Run a script as a user with a limit on processes and threads; root has no limit."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs to become a user without processes: root, and setpriv of util-linux")
    scratch.chmod(0o1777)
    opening = f"""
        import os
        os.environ["RTCOMPILE_CACHE_DIR"] = {str(scratch / "cache")!r}
        from tests.trials.test_workers_trials import *
        toolkit.current()  # runs nvcc in a process
        resource.setrlimit(resource.RLIMIT_NPROC, ({processes}, {processes}))
    """
    command = [*AS_NOBODY, sys.executable, "-c", textwrap.dedent(opening) + textwrap.dedent(script)]
    done = ran(*command, cwd=ROOT)
    if done.stderr.startswith("setpriv"):
        pytest.skip(f"may not become another user here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_reaching_the_process_limit_is_an_error_that_names_it(scratch):
    script = """
        import rtcompile
        with pytest.raises(rtcompile.RtcompileError, match="ulimit -u"):
            build(1)
    """
    as_nobody(script, scratch, processes=0)
