"""Tests of worker processes: a job returns its value, and no failure of a job affects anything else."""

import contextlib
import errno
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rtcompile.request.units import Limits
from rtcompile.workers import pool as workers
from rtcompile.workers import process
from rtcompile.workers.pool import Cancellation, Cancelled, Crash, Job, JobResult
from tests.interrupts import interrupted
from tests.jobs import FOREVER, Fifo, Pool, ended, eventually, output, shell

pytestmark = pytest.mark.usefixtures("scratch")


def in_thread(function: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


@pytest.fixture
def one_slot() -> Iterator[Pool]:
    pool = Pool(jobs=1)
    yield pool
    pool.close()


def holding(pool: Pool, fifo: Fifo) -> threading.Thread:
    """Take a slot in a thread until a line is written to the pipe."""
    script = f"echo up > {fifo}; read x < {fifo}"
    thread, _ = in_thread(lambda: pool.run(shell(script), Limits()))
    fifo.read()
    return thread


def test_values_are_returned_unchanged(pool):
    outcome = pool.run(shell("printf '\\000\\377' > made", results=["made"]), Limits())
    assert isinstance(outcome, JobResult)
    assert outcome.value["files"] == {"made": b"\0\xff"}


def test_a_job_has_an_empty_working_directory_for_its_temporary_files(pool, scratch):
    script = "pwd; echo $TMPDIR; ls -A; touch left"
    here, temporary = output(pool.run(shell(script), Limits())).split()
    assert here.startswith(str(scratch))
    assert temporary == here
    assert eventually(lambda: not os.path.exists(here))


@pytest.mark.parametrize(
    ("job", "text"),
    [
        pytest.param(
            Job("rtcompile.workers.zygote:run", {}), "KeyError: 'files'", id="an exception"
        ),
        pytest.param(Job("os:system", {}), "'os:system' is not in rtcompile", id="not of us"),
        pytest.param(Job(f"rtcompile.{'x' * (16 << 10)}:run", {}), "x" * (16 << 10), id="long"),
        pytest.param(Job(f"rtcompile.{'x' * (1 << 20)}:run", {}), "x" * (1 << 20), id="longer"),
    ],
)
def test_a_job_that_cannot_run_is_reported_with_its_traceback(pool, job, text):
    outcome = pool.run(job, Limits())
    assert isinstance(outcome, Crash)
    assert outcome.kind == "start"
    assert text in outcome.text


def test_workers_inherit_neither_environment_nor_descriptors_nor_session_of_the_caller(
    pool, monkeypatch, tmp_path
):
    session, group = output(pool.run(shell("ps -o sid=,pgid= -p $PPID"), Limits())).split()
    assert int(session) != os.getsid(0)
    assert int(group) != os.getpgrp()
    with open(tmp_path / "secret", "w") as file:
        os.set_inheritable(file.fileno(), True)
        assert "secret" not in output(pool.run(shell("ls -l /proc/$PPID/fd"), Limits()))
    for name in ("LD_PRELOAD", "NVRTC_DISABLE_PCH", "PYTHONPATH", "A_PASSWORD"):
        monkeypatch.setenv(name, "/proc/nowhere")
    for zygote in pool.zygotes:  # the next one starts with these variables
        zygote.close()
    environ = output(pool.run(shell("tr '\\0' '\\n' < /proc/$PPID/environ"), Limits()))
    names = {line.partition("=")[0] for line in environ.splitlines()}
    assert names <= {"LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "CUDA_CACHE_DISABLE"}
    assert "CUDA_CACHE_DISABLE=1" in environ


@pytest.mark.takes_seconds
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL])
def test_a_worker_that_dies_is_reported_as_a_crash_and_the_next_job_works(pool, number):
    script = f"echo last words >&2; kill -{int(number)} $PPID; {FOREVER}"
    outcome = pool.run(shell(script), Limits())
    assert isinstance(outcome, Crash)
    assert (outcome.kind, outcome.signal) == ("crash", number)
    assert outcome.stderr == b"last words\n"
    assert output(pool.run(shell("echo alive"), Limits())) == "alive"


def test_programs_ignore_no_signal_and_workers_are_the_first_that_the_kernel_kills_for_memory(pool):
    script = "grep SigIgn /proc/$$/status; cat /proc/$PPID/oom_score_adj"
    _, ignored, score = output(pool.run(shell(script), Limits())).split()
    assert not int(ignored, 16) & 0x7FFFFFFF  # signals from 32 on belong to the C library
    assert score == "1000"


def test_a_worker_that_cannot_start_leaves_no_descriptor(pool, monkeypatch):
    def no_more(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for name in ("posix_spawn", "memfd_create"):
        with monkeypatch.context() as patch:
            patch.setattr(process.os, name, no_more)
            before = {*os.listdir("/proc/self/fd")}
            with pytest.raises(OSError, match="Too many open files"):
                process.ZygoteProcess()
            assert {*os.listdir("/proc/self/fd")} <= before
    with monkeypatch.context() as patch:
        patch.setattr(process.fcntl, "fcntl", no_more)
        with pytest.raises(OSError, match="Too many open files"):
            process.ZygoteProcess()
    assert {*os.listdir("/proc/self/fd")} <= before


def test_a_time_limit_kills_the_job_and_its_children(pool, tmp_path):
    pid_file = tmp_path / "pid_file"
    script = f"({FOREVER}) & echo $! > {pid_file}; wait"
    seconds = 0.5
    # Until the script comes so far before it is killed.
    while not pid_file.exists() or not pid_file.read_text():
        outcome = pool.run(shell(script), Limits(timeout=seconds))
        assert isinstance(outcome, Crash)
        assert outcome.kind == "timeout"
        seconds *= 2
    assert ended(pid_file.read_text())


def test_processes_that_a_job_left_running_are_killed(pool):
    assert ended(output(pool.run(shell(f"({FOREVER}) >/dev/null 2>&1 & echo $!"), Limits())))


@pytest.mark.takes_seconds
def test_a_memory_limit_counts_all_processes_of_a_job(pool):
    hog = f"{shlex.quote(sys.executable)} -c 'import time; held = bytearray(60 << 20); time.sleep(1000)'"
    outcome = pool.run(shell(f"{hog} & {hog} & wait"), Limits(memory=100 << 20))
    assert isinstance(outcome, Crash)
    assert outcome.kind == "memory"


def killed_job(pool: Pool) -> None:
    assert isinstance(pool.run(shell("kill -9 $PPID"), Limits()), Crash)


def cancelled_job(pool: Pool) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    token = Cancellation.current.set(cancellation)
    with pytest.raises(Cancelled):
        pool.run(shell("true"), Limits())
    Cancellation.current.reset(token)


def job_that_cannot_be_sent(pool: Pool) -> None:
    def job() -> Job:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pool.run(job, Limits())


@pytest.mark.takes_seconds
@pytest.mark.parametrize(
    "use", [killed_job, cancelled_job, job_that_cannot_be_sent], ids=lambda use: use.__name__
)
def test_a_slot_is_returned_however_its_job_ended(use, one_slot):
    for _ in range(3):
        use(one_slot)
    # A thread that has the slot needs no other: another thread waits for it.
    thread, results = in_thread(lambda: output(one_slot.run(shell("echo had"), Limits())))
    thread.join(60)
    assert results == ["had"]


@pytest.mark.takes_seconds
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_an_interrupt_at_any_moment_leaves_no_slot_taken(one_slot):
    for number, _ in enumerate(interrupted(lambda: killed_job(one_slot), workers, contextlib)):
        assert not one_slot._slots, f"moment {number}"
        assert not process.ZygoteProcess.lock._is_owned()
    assert number > 50
    for socket in {*process._theirs}:  # of interrupts between its making and its use
        process.close_theirs(socket)


@pytest.mark.takes_seconds
def test_no_more_jobs_run_at_once_than_the_pool_has_slots(one_slot, fifo):
    holder = holding(one_slot, fifo)
    waiter, results = in_thread(lambda: one_slot.run(shell("echo ran"), Limits()))
    assert eventually(lambda: waiter.is_alive() and not results)
    beside = one_slot.run_beside(shell("echo beside"), Limits())
    assert output(beside) == "beside"
    assert not results
    fifo.path.write_text("go on\n")
    holder.join()
    waiter.join()
    assert output(results[0]) == "ran"
    assert results[0].queued > 0


def cancellable(pool: Pool, script: str) -> tuple[threading.Thread, list[Any], Cancellation]:
    """Run a job in a thread that can be cancelled."""
    cancellation = Cancellation()

    def run() -> JobResult | Crash:
        Cancellation.current.set(cancellation)
        return pool.run(shell(script), Limits())

    return *in_thread(run), cancellation


def test_a_cancelled_job_frees_its_caller_and_is_killed(pool, fifo):
    thread, results, cancellation = cancellable(pool, f"echo $PPID > {fifo}; {FOREVER}")
    worker = fifo.read()
    cancellation.cancel()
    thread.join()
    assert isinstance(results[0], Cancelled)
    assert ended(worker)
    assert output(pool.run(shell("echo next"), Limits())) == "next"


def test_a_cancelled_job_that_is_still_queued_never_runs(one_slot, tmp_path, fifo):
    holder = holding(one_slot, fifo)
    waiter, results, cancellation = cancellable(one_slot, f"touch {tmp_path}/ran")
    cancellation.cancel()
    fifo.path.write_text("go on\n")
    holder.join()
    waiter.join()
    assert isinstance(results[0], Cancelled)
    assert not (tmp_path / "ran").exists()


@pytest.mark.takes_seconds
def test_a_zygote_that_has_idled_out_is_replaced(pool, scratch, monkeypatch):
    monkeypatch.setattr(process, "IDLE_SECONDS", 0.01)
    first = output(pool.run(shell("ps -o ppid= -p $PPID"), Limits()))
    # It is a zombie until the pool notices its end; its folder is removed before.
    assert eventually(lambda: list(scratch.iterdir()) == [])
    assert output(pool.run(shell("ps -o ppid= -p $PPID"), Limits())) != first


@pytest.mark.takes_seconds
def test_a_forked_process_has_its_own_workers(pool, monkeypatch):
    monkeypatch.setattr(workers, "_pool", pool)
    script = "ps -o ppid= -p $PPID"
    ours = output(workers.run(shell(script), Limits()))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        theirs = output(workers.run(shell(script), Limits()))
        os.write(write, theirs.encode())
        os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as pipe:
        assert pipe.read() not in ("", ours)
    os.waitpid(child, 0)
    assert output(workers.run(shell(script), Limits())) == ours


@pytest.mark.parametrize("executable", ["", None, "/usr/sbin/an-application"])
def test_an_application_that_embeds_python_gets_workers_from_its_prefix(
    pool, monkeypatch, executable
):
    monkeypatch.setattr(sys, "executable", executable)
    monkeypatch.setattr(sys, "_base_executable", executable)
    assert output(pool.run(shell("echo works"), Limits())) == "works"


def test_a_job_that_interrupts_one_of_its_own_thread_does_not_wait_for_its_slot(one_slot):
    inner = []

    def interrupt() -> None:
        inner.append(output(one_slot.run(shell("echo inner"), Limits())))

    thread, results = in_thread(lambda: one_slot.run(shell("echo outer"), Limits(), interrupt))
    thread.join(60)
    assert (inner, [output(each) for each in results]) == (["inner"], ["outer"])
