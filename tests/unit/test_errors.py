"""Errors are CuPy's where CuPy is, carry their evidence, and travel between processes."""

from __future__ import annotations

import io
import pickle
import subprocess
import sys

import pytest

from rtcompile import errors
from rtcompile.messages.diagnostics import Diagnostic


def make_error(kind=errors.CompileError) -> errors.CompileError:
    return kind(
        "it failed",
        "line 1\nline 2",
        "k.cu",
        ("-G",),
        "nvcc",
        diagnostics=(Diagnostic("error", "it failed"),),
        log="whole log",
    )


@pytest.mark.parametrize("kind", [errors.CompileError, errors.CompilerCrashed, errors.LinkError])
def test_a_compile_error_pickles_whole(kind):
    error = make_error(kind)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.__dict__ == error.__dict__
    assert str(again) == "it failed"


def test_a_dump_shows_the_options_and_the_numbered_source():
    out = io.StringIO()
    make_error().dump(out)
    for part in ("NVCC compilation error: it failed", "Name: k.cu", "Options: -G", "2 line 2"):
        assert part in out.getvalue()


def test_cupys_except_clause_catches_errors_imported_before_cupy_was():
    pytest.importorskip("cupy")
    code = """
from rtcompile.errors import CompileError, CompileTimeout, JitifyError, adopt_cupy
import cupy
from cupy.cuda.compiler import CompileException, JitifyException
adopt_cupy()
for ours, theirs in ((CompileError, CompileException), (CompileTimeout, CompileException),
                     (JitifyError, JitifyException)):
    try:
        raise ours("m", "source", "name", ("-x",), "nvrtc")
    except theirs as error:
        assert (str(error), error.source, error.options) == ("m", "source", ("-x",)), error
        assert error.get_message() == "m"
"""
    subprocess.run([sys.executable, "-c", code], check=True)
