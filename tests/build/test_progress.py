"""Progress in a terminal, which is one line that changes, and in a log."""

import io
import os
import pty
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from rtcompile import CompileRequest, compile_many
from rtcompile.extras import progress
from rtcompile.styling import changing_line, takes_escapes
from tests.processes import python

pytestmark = pytest.mark.needs_compiler

REQUESTS = [CompileRequest(f"__global__ void k() {{ int a = {i}; }}", arch="sm_80") for i in (1, 2)]


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self) -> bool:
        return True


def in_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Let stderr be a terminal within the test itself, since pytest sets stderr for each phase."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    return terminal


def test_a_batch_is_one_changing_line(monkeypatch):
    terminal = in_terminal(monkeypatch)
    compile_many(REQUESTS)
    written = terminal.getvalue()
    assert written.count("\n") == 1
    assert "0 of 2 compiled" in written.split("\r")[1]
    assert "2 of 2 compiled" in written.split("\r")[-1]


def test_progress_is_shown_if_no_thread_can_start(monkeypatch):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    terminal = in_terminal(monkeypatch)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    compile_many(REQUESTS)
    assert "2 of 2 compiled" in terminal.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False], ids=["dumb", "none"])
def test_a_dumb_terminal_and_none_get_nothing(monkeypatch, is_terminal):
    stream = in_terminal(monkeypatch)
    monkeypatch.setenv("TERM", "dumb" if is_terminal else "xterm")
    monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    with changing_line() as show:
        show("compiling: 1 s")
    compile_many(REQUESTS)
    assert not takes_escapes(stream)
    assert stream.getvalue() == ""


def test_a_log_is_not_silent_during_a_long_build(monkeypatch, capsys):
    monkeypatch.setattr(progress, "_MOST_SILENT_SECONDS", 0.01)
    with progress.shown_progress(True, 2):
        written = ""
        deadline = time.monotonic() + 10
        while "0 of 2 compiled" not in written and time.monotonic() < deadline:
            time.sleep(0.01)
            written += capsys.readouterr().err
    assert "rtcompile: 0 of 2 compiled in" in written


class Sink:
    """An object that some programs assign to `sys.stderr`."""

    def write(self, text: str) -> None:
        pass


@pytest.mark.parametrize(
    ("stderr", "given"), [(None, None), (None, False), (None, True), (Sink(), None)]
)
def test_a_batch_is_built_where_stderr_is_none_or_can_only_be_written_to(
    monkeypatch, capsys, stderr, given
):
    monkeypatch.setattr(sys, "stderr", stderr)
    assert len(compile_many(REQUESTS, progress=given)) == 2
    assert capsys.readouterr().out == ""


SLOW = """
import sys, time
from rtcompile import compile
from rtcompile.build import miss
from rtcompile.extras import progress
progress._LONG = 0.2
run = miss.Miss.run
miss.Miss.run = lambda self: (time.sleep(0.6), run(self))[1]
for number in range(3):
    compile('extern "C" __global__ void k(int* p) { *p = %d; }' % number, arch="sm_80")
print("the program's own line")
"""


def on_terminal(program: str, **environ: str) -> str:
    """Run a program on a terminal; return what is written there."""
    here, there = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "TERM": "xterm", **environ},
        stdout=there,
        stderr=there,
    ) as process:
        os.close(there)
        written = b""
        with suppress(OSError):  # at the end
            while data := os.read(here, 4096):
                written += data
    os.close(here)
    assert process.returncode == 0, written
    return written.decode()


def test_a_first_run_shows_a_waiting_line_on_a_terminal_and_erases_it():
    written = on_terminal(SLOW)

    assert "rtcompile: 1 kernel to compile, 0 done" in written
    assert "rtcompile: 3 kernels to compile, 2 done" in written
    assert written.endswith("\r\x1b[Kthe program's own line\r\n")
    assert on_terminal(SLOW) == "the program's own line\r\n"  # all is cached


def test_a_first_run_shows_nothing_if_disabled_or_without_a_terminal():
    slow = SLOW.replace("range(3)", "range(1)")
    assert on_terminal(slow, RTCOMPILE_PROGRESS="0") == "the program's own line\r\n"
    done = python(slow.replace("%d", "1%d"))
    assert (done.stdout, done.stderr) == ("the program's own line\n", "")
