"""A build logs one line, to those who listen."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

import rtcompile
from rtcompile.core.arch import Arch
from rtcompile.core.request import BuildInfo, CompileRequest, ObjectCode
from rtcompile.watching.logs import announce

REQUEST = CompileRequest("x", name="mine.cu")
CODE = ObjectCode(b"12345", "cubin", Arch(9, 0, "a"), {}, BuildInfo("nvcc", why="std::vector"))


def test_a_listener_gets_the_line_and_its_fields(caplog):
    with caplog.at_level(logging.INFO, "rtcompile"):
        announce(REQUEST, CODE, None)
    (record,) = caplog.records
    assert record.getMessage() == "mine.cu for sm_90a by nvcc, built in 0.0 ms: std::vector"
    assert (record.program, record.arch, record.code_bytes) == ("mine.cu", "sm_90a", 5)


def test_silent_by_default_and_one_line_per_build_when_asked(monkeypatch):
    code = (
        "from rtcompile import compile\n"
        "for _ in range(2): compile('__global__ void k() {}', arch='sm_80', name='mine.cu')\n"
    )

    def stderr() -> str:
        return subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stderr

    assert stderr() == ""
    monkeypatch.setenv("RTCOMPILE_LOG", "info")
    first, second = stderr().splitlines()
    assert first.startswith("rtcompile: mine.cu for sm_80 by nvrtc, hit (disk) in ")
    assert "hit (memory)" in second


def test_the_line_says_which_options_were_changed_or_not_passed_on(caplog):
    with caplog.at_level(logging.INFO, "rtcompile"):
        code = rtcompile.compile(
            "__global__ void k() {}", arch="sm_80", options=["-std=gnu++17", "-Xcompiler=-Wall"]
        )
    standard, host = code.build.notes
    assert standard.startswith("-std=gnu++17 became c++17")
    assert host.startswith("--compiler-options is not passed on")
    assert caplog.records[-1].getMessage().endswith(f"; {standard}; {host}")


def test_an_unknown_level_is_refused():
    with pytest.raises(rtcompile.InvalidRequest, match="RTCOMPILE_LOG='loud'"):
        announce(REQUEST, CODE, "loud")
