"""Tests of the log: each build logs one line to handlers and listeners."""

import logging

import pytest

import rtcompile
from rtcompile import settings
from rtcompile.lookup import find
from rtcompile.request.object_code import BuildInfo, ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.request.values import Arch
from rtcompile.settings import announce

pytestmark = pytest.mark.needs_compiler

REQUEST = CompileRequest("x", name="mine.cu")
CODE = ObjectCode(b"12345", "cubin", Arch(9, 0, "a"), {}, BuildInfo("nvcc", why="std::vector"))


def test_a_listener_gets_the_line_and_its_fields(caplog):
    with caplog.at_level(logging.INFO, "rtcompile"):
        announce(REQUEST, CODE, None)
    (record,) = caplog.records
    assert record.getMessage() == "mine.cu for sm_90a by nvcc, built in 0.0 ms: std::vector"
    assert (record.program, record.arch, record.code_bytes) == ("mine.cu", "sm_90a", 5)


def test_the_line_lists_options_that_were_changed_or_not_passed_on(caplog):
    with caplog.at_level(logging.INFO, "rtcompile"):
        code = rtcompile.compile(
            "__global__ void k() {}", arch="sm_80", options=["-std=gnu++17", "-Xcompiler=-Wall"]
        )
    standard, host = code.build.notes
    assert standard.startswith("-std=gnu++17 became c++17")
    assert host.startswith("--compiler-options is not passed on")
    assert caplog.records[-1].getMessage().endswith(f"; {standard}; {host}")


def build():
    return rtcompile.compile("__global__ void k() {}", arch="sm_80", name="mine.cu")


def test_the_line_is_printed_as_long_as_the_variable_is_set(monkeypatch, capsys):
    lines = []
    for level in ("info", None, "error", "Info", ""):
        monkeypatch.delenv("RTCOMPILE_LOG", raising=False)
        if level is not None:
            monkeypatch.setenv("RTCOMPILE_LOG", level)
        build()
        lines.append(capsys.readouterr().err.partition(" in ")[0])
    line = "rtcompile: mine.cu for sm_80 by nvrtc, "
    assert lines == [f"{line}built", "", "", f"{line}hit (disk)", ""]


class Raising(logging.Handler):
    """A handler that raises instead of calling `handleError`."""

    def emit(self, record):
        raise ZeroDivisionError("in a handler")


@pytest.fixture
def heard(monkeypatch):
    """Return the calls of a listener that follows the raising ones."""
    heard = []
    monkeypatch.setattr(settings, "_has_warned", False)
    monkeypatch.setattr(find, "listeners", [lambda *_: 1 // 0, lambda *what: heard.append(what)])
    return heard


def test_a_listener_that_raises_causes_one_warning_and_changes_no_result(heard):
    with pytest.warns(rtcompile.RtcompileWarning, match="ZeroDivisionError") as warned:
        codes = [build() for _ in range(3)]
    assert len(warned) == 1
    assert [code.build.hit for code in codes] == [None, "memory", "memory"]
    assert len(heard) == 3


def test_a_handler_that_raises_changes_no_result(heard, monkeypatch):
    logger = logging.getLogger("rtcompile")
    monkeypatch.setattr(logger, "handlers", [Raising()])
    monkeypatch.setattr(logger, "level", logging.INFO)
    logger.manager._clear_cache()
    with pytest.warns(rtcompile.RtcompileWarning):
        assert build().code == build().code
    logger.manager._clear_cache()


def test_an_error_reaches_its_caller_despite_a_raising_listener_and_is_not_logged(heard, caplog):
    caplog.set_level(logging.INFO, "rtcompile")
    with (
        pytest.warns(rtcompile.RtcompileWarning),
        pytest.raises(rtcompile.CompileError, match="undefined"),
    ):
        rtcompile.compile("__global__ void k() { missing(); }", arch="sm_80", fallback="never")
    assert isinstance(heard[0][1], rtcompile.CompileError)
    assert not caplog.records
