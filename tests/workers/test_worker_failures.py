"""Tests of workers that die or cannot start: the error states the reason, and not a missing toolkit."""

import os
import signal
import sys
import time

import pytest

import rtcompile
from rtcompile.compilers import nvrtc
from rtcompile.errors import CompileError, CompilerCrashed, CompileTimeout, ToolkitNotFound
from rtcompile.workers import pool
from rtcompile.workers.process import ZygoteProcess
from tests.jobs import Pool
from tests.trials.test_workers_trials import with_mounts

FIRST_BUILD = """
    import os, rtcompile
    try:
        rtcompile.compile("__global__ void f() {}", arch="sm_80")
    except rtcompile.RtcompileError as error:
        print(type(error).__name__, error)
"""


@pytest.fixture
def own_pool(monkeypatch: pytest.MonkeyPatch) -> Pool:
    own = Pool(1)
    monkeypatch.setattr(nvrtc.pool, "run", own.run)
    yield own
    own.close()


@pytest.mark.parametrize(
    ("number", "meaning"),
    [(signal.SIGKILL, "lack of memory"), (signal.SIGTERM, "another program ended it")],
)
def test_a_killed_zygote_is_reported(own_pool, monkeypatch, number, meaning):
    monkeypatch.setattr(ZygoteProcess, "load", lambda self, *_: os.kill(self.pid, number))
    with pytest.raises(CompileError, match=rf"Signal {number} \(.*{meaning}.*ended it") as raised:
        rtcompile.compile(f"// ended by {number}", arch="sm_80")
    assert not isinstance(raised.value, ToolkitNotFound)


def test_a_worker_that_does_not_load_the_compiler_is_ended_at_the_time_limit(own_pool, monkeypatch):
    monkeypatch.setattr(ZygoteProcess, "load", lambda self, *_: os.kill(self.pid, signal.SIGSTOP))
    begin = time.monotonic()
    with pytest.raises(CompileTimeout, match="time limit"):
        rtcompile.compile("// not loaded", arch="sm_80", timeout=1.0)
    assert time.monotonic() - begin < 30


def test_a_killed_job_is_reported(own_pool, monkeypatch):
    killed = pool.Crash("crash", signal.SIGKILL, "", b"")
    monkeypatch.setattr(nvrtc.pool, "run", lambda *_: killed)
    with pytest.raises(CompilerCrashed, match=r"died by signal 9 \(.*lack of memory"):
        rtcompile.compile("// killed", arch="sm_80")


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        pytest.param(
            "for folder in /var/tmp /dev/shm ${TMPDIR:-/tmp} /tmp; do mkdir -p $folder; "
            "mount -t tmpfs -o ro none $folder || exit 1; done",
            "no folder for temporary files can be used",
            id="nothing to write to",
        ),
        pytest.param(
            "mount -t tmpfs none /dev", "No such file or directory: '/dev/null'", id="/dev"
        ),
    ],
)
def test_the_reason_why_a_worker_cannot_start_is_reported(mounts, expected):
    if f"{sys.prefix}/".startswith(("/tmp/", "/var/tmp/")):
        pytest.skip("the environment lies in a folder that this test covers")
    output = with_mounts(mounts, FIRST_BUILD)
    assert output.startswith("CompileError "), output
    assert expected in output
