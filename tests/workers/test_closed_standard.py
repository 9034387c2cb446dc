"""Tests of programs whose standard streams are closed, as daemons have them (``2>&-``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rtcompile.request.units import Limits
from rtcompile.workers.pool import Pool
from tests.jobs import output, shell
from tests.processes import ran

# A C library that writes to all three without a pause, as a real one writes a warning now and then.
PROGRAM = """
import ctypes, os, sys, threading, time
import rtcompile

stopped = []

def write_messages():
    while not stopped:
        for number in range(3):
            ctypes.CDLL(None).write(number, b"a C library's message", 21)
        time.sleep(0.0005)

before = [number for number in range(3) if os.path.exists(f"/proc/self/fd/{number}")]
thread = threading.Thread(target=write_messages)
if before == []:
    thread.start()
results = []
for number in range(4):
    try:
        made = rtcompile.compile(f"__global__ void k{number}() {{}}", arch="sm_80")
        results.append(str(made.build.hit))
    except BaseException as error:
        results.append(repr(error))
for number in range(3):
    if number not in before and os.path.exists(f"/proc/self/fd/{number}"):
        results.append(os.readlink(f"/proc/self/fd/{number}"))
if before == []:
    stopped.append(True)
    thread.join()
with open(sys.argv[1], "w") as file:
    file.write("\\n".join(results))
"""


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    "closed",
    [pytest.param(c, id="".join(map(str, c))) for c in ((0,), (1,), (2,), (0, 1, 2))],
)
def test_builds_work_and_are_kept_with_closed_standard_descriptors(
    tmp_path: Path, closed: tuple[int, ...]
) -> None:
    cache, results = tmp_path / "cache", tmp_path / "results"
    closing = " ".join(f"{number}>&-" for number in closed)
    words = ["/bin/sh", "-c", f'exec "$@" {closing}', "sh", sys.executable, "-c", PROGRAM, results]
    for hit in ("None", "disk"):
        ran(*words, environ={"RTCOMPILE_CACHE_DIR": cache}, stdin=subprocess.DEVNULL, timeout=100)
        nothing = [] if hit == "disk" else ["/dev/null"] * len(closed)  # of a hit none stays open
        assert results.read_text().split("\n") == [hit] * 4 + nothing
    written = b"".join(path.read_bytes() for path in cache.rglob("*") if path.is_file())
    assert b"a C library's message" not in written


def test_a_worker_that_receives_no_message_ends_with_an_error_that_says_so(pool: Pool) -> None:
    output(pool.run(shell("true"), Limits()))
    (zygote,) = pool.zygotes.values()
    os.write(zygote.control.fileno(), b"warning: not of rtcompile")
    zygote.reap()
    assert zygote.last_stderr == (
        "The worker ended: something other than a message of rtcompile arrived: "
        "b'warning: not of rtcompile'"
    )
