"""Tests of workers and their program's Ctrl-C, forks and end."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rtcompile.workers import pool as workers
from tests.jobs import FOREVER, Fifo, ended, eventually
from tests.processes import python, started

pytestmark = pytest.mark.usefixtures("scratch")


def run_script(script: str, fifo: Fifo, **options: Any) -> subprocess.Popen[str]:
    """Start a program that uses a pool and defines `job`; the job prints its worker's pid and waits."""
    opening = f"""
        import os, signal, sys, threading
        # A test run in the background of a shell hands down that Ctrl-C is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        assert __name__ == "__main__"
        os.write(2, b"main ran\\n")
        from rtcompile.request.units import Limits
        from rtcompile.workers import pool
        command = ["/bin/sh", "-c", "echo $PPID > {fifo}; exec {FOREVER}"]
        arguments = dict(command=command, environ=dict(os.environ), files={{}}, results=[])
        job = pool.Job("rtcompile.workers.zygote:run", arguments)
    """
    text = textwrap.dedent(opening) + textwrap.dedent(script)
    path = fifo.path.with_suffix(".py")
    path.write_text(text)
    root = str(Path(workers.__file__).parents[2])
    environ = {"PYTHONPATH": root}
    given = {"stdin": None, "stderr": subprocess.PIPE, **options}
    return started(sys.executable, path, environ=environ, **given)


def parent(pid: str) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_ctrl_c_kills_the_worker_also_while_a_forked_child_of_the_caller_lives(fifo):
    program = run_script(
        f"""
        def fork_and_interrupt():
            worker = open("{fifo}").read().strip()
            if os.fork() == 0:  # holds copies of the parent's sockets
                import time
                time.sleep(1000)
            print(worker, flush=True)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=fork_and_interrupt).start()
        try:
            pool.run(job, Limits())
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            sys.stdin.read()
        """,
        fifo,
        start_new_session=True,
        stdin=subprocess.PIPE,
    )
    worker = program.stdout.readline().strip()
    try:
        assert program.stdout.readline() == "interrupted\n"
        assert ended(worker)
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        program.communicate()


@pytest.mark.takes_seconds
def test_workers_serve_a_caller_that_ignores_sigchld(fifo):
    program = run_script(
        """
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        arguments["command"][2] = "true; true | true; echo works"
        for _ in range(12):
            print(pool.run(job, Limits()).value["log"].strip(), flush=True)
        """,
        fifo,
    )
    assert program.communicate(timeout=60)[0] == "works\n" * 12


def test_a_jobs_processes_die_even_if_caller_zygote_and_child_are_killed(fifo, scratch):
    program = run_script(
        f"""
        job.arguments["command"][2] = "({FOREVER}) & echo $PPID $$ $! > {fifo}; wait"
        pool.run(job, Limits())
        """,
        fifo,
    )
    worker, started, grandchild = fifo.read().split()
    zygote = parent(worker)
    for stopped in (program.pid, zygote):  # otherwise they would notice the others' deaths
        os.kill(stopped, signal.SIGSTOP)
    os.kill(int(worker), signal.SIGKILL)
    assert ended(worker)
    os.kill(zygote, signal.SIGKILL)
    program.kill()
    program.communicate()
    assert ended(started)
    assert ended(grandchild)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_workers_die_with_a_killed_caller_whose_own_children_live_on_even_if_stopped(
    fifo, scratch, is_stopped
):
    program = run_script(
        f"""
        run = threading.Thread(target=pool.run, args=(job, Limits()))
        run.start()
        worker = open("{fifo}").read()
        if os.fork() == 0:  # holds copies of the parent's sockets
            import time
            time.sleep(1000)
        print(worker, flush=True)
        """,
        fifo,
        start_new_session=True,
    )
    worker = program.stdout.readline().strip()
    zygote = parent(worker)
    if is_stopped:
        os.kill(zygote, signal.SIGSTOP)
    program.kill()
    try:
        assert ended(worker)
        assert ended(zygote)
        assert eventually(lambda: list(scratch.iterdir()) == [])
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        program.communicate()


@pytest.mark.takes_seconds
def test_an_exit_handler_that_runs_after_rtcompiles_can_build(fifo):
    program = run_script(
        """
        import atexit

        def late():
            assert pool.ZygoteProcess.all_ended
            print(pool.run(echo, Limits()).value["log"], end="")

        atexit._clear()
        atexit.register(late)
        atexit.register(pool.process._end)  # handlers run in reverse order
        arguments["command"] = ["/bin/echo", "done"]
        echo = pool.Job("rtcompile.workers.zygote:run", arguments)
        print(pool.run(echo, Limits()).value["log"], end="", flush=True)
        """,
        fifo,
    )
    out, err = program.communicate(timeout=60)
    assert (out, err, program.returncode) == ("done\ndone\n", "main ran\n", 0)


@pytest.mark.takes_seconds
def test_an_application_may_close_all_descriptors_and_reuse_their_numbers(fifo):
    program = run_script(
        """
        arguments["command"] = ["/bin/echo", "done"]
        echo = pool.Job("rtcompile.workers.zygote:run", arguments)
        for _ in range(2):
            print(pool.run(echo, Limits()).value["log"], end="", flush=True)
            os.closerange(3, 100)
            files = [os.memfd_create("the application's") for _ in range(3, 20)]
        if not os.fork():
            os._exit(sum(os.write(file, b"x") for file in files) != len(files))
        print(os.wait()[1])
        print(pool.run(echo, Limits()).value["log"], end="", flush=True)
        print({os.pread(file, 9, 0) for file in files})
        """,
        fifo,
    )
    out, err = program.communicate(timeout=60)
    assert err == "main ran\n"
    assert out == "done\ndone\n0\ndone\n{b'x'}\n"


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    ("limits", "message"),
    [
        pytest.param(
            "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))",
            "may not write files of this size here (`ulimit -f`)",
            id="the size of a file",
        ),
        pytest.param(
            """resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            with contextlib.suppress(OSError):
                held = []
                while True:
                    held.append(open("/dev/null"))
            """,
            "may have no more files open here (`ulimit -n`)",
            id="open files",
        ),
    ],
)
def test_a_shell_limit_is_an_error_that_names_it_and_the_fix(limits, message):
    script = f"""
            import contextlib, resource, sys
            import rtcompile, rtcompile.build.many
            from rtcompile import api
            # Python writes half a .pyc under a limit. The worker is started before it.
            sys.dont_write_bytecode = True
            api.compile("__global__ void first() {{}}", arch="sm_80")
            {limits}
            source = "__global__ void k() {{}}" + " " * (1 << 15)  # too long for a message
            request = rtcompile.CompileRequest(source, arch="sm_80")
            for build in (
                lambda: api.compile(source, arch="sm_80"),
                lambda: rtcompile.build.many.compile_many([request], progress=False),
            ):
                try:
                    build()
                except rtcompile.RtcompileError as error:
                    print(error)
    """
    done = python(script)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count(message) == 2, done.stdout
    assert done.stdout.count("before") == 2
