"""Tests of workers that die or cannot start: the error states the reason, and not a missing toolkit."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from rtcompile import CompileRequest, toolkit
from rtcompile.build import planned
from rtcompile.compilers import nvrtc
from rtcompile.errors import CompileError, CompilerCrashed, CompileTimeout, ToolkitNotFound
from rtcompile.settings import Settings
from rtcompile.workers import pool
from rtcompile.workers.pool import Pool
from rtcompile.workers.process import ZygoteProcess
from tests.trials.test_workers_trials import with_mounts

# No build was cached, so the compiler's version is queried first.
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
    monkeypatch.setattr(nvrtc, "_builds", {})
    yield own
    own.close()


@pytest.mark.parametrize(
    ("number", "meaning"),
    [(signal.SIGKILL, "lack of memory"), (signal.SIGTERM, "another program ended it")],
)
def test_a_killed_zygote_is_reported(own_pool, monkeypatch, number, meaning):
    monkeypatch.setattr(ZygoteProcess, "load", lambda self, *_: os.kill(self.pid, number))
    with pytest.raises(CompileError, match=rf"Signal {number} \(.*{meaning}.*ended it") as raised:
        nvrtc.identify(toolkit.current().require_nvrtc())
    assert not isinstance(raised.value, ToolkitNotFound)


def test_the_query_for_the_compilers_build_has_a_time_limit(own_pool, monkeypatch):
    settings = Settings.from_environ().replace(timeout=1.0)
    plan = planned.plan(CompileRequest("", arch="sm_80"), settings)
    unknown = plan.toolchain.require_nvrtc()._replace(build="")
    plan = plan._replace(toolchain=plan.toolchain._replace(nvrtc=unknown))
    monkeypatch.setattr(ZygoteProcess, "load", lambda self, *_: os.kill(self.pid, signal.SIGSTOP))
    begin = time.monotonic()
    with pytest.raises(CompileTimeout, match="queried for its version"):
        planned.identified(plan, settings)
    assert time.monotonic() - begin < 30


def test_a_killed_job_is_reported(own_pool, monkeypatch):
    killed = pool.Crash("crash", signal.SIGKILL, "", b"")
    monkeypatch.setattr(nvrtc.pool, "run", lambda *_: killed)
    with pytest.raises(CompilerCrashed, match=r"died by signal 9 \(.*lack of memory"):
        nvrtc.identify(toolkit.current().require_nvrtc())


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
