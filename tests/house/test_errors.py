"""Tests of errors: they are CuPy's classes if CuPy is installed, contain the evidence, and can be pickled."""

import io
import pickle
import re

import pytest

import rtcompile
from rtcompile import errors
from rtcompile.build import planned
from rtcompile.build.failures import as_error
from rtcompile.diagnostic import Diagnostic
from rtcompile.messages.catalogue import MESSAGES
from rtcompile.messages.rendering import render, spelled
from rtcompile.request.units import CompileFailure
from rtcompile.settings import Settings
from tests.processes import python


@pytest.mark.parametrize("kind", [errors.CompileError, errors.CompilerCrashed, errors.LinkError])
def test_a_compile_error_pickles_with_all_fields_and_dumps_its_source(kind):
    given = "it failed", "line 1\nline 2", "k.cu", ("-G",), "nvcc"
    error = kind(*given)
    error.diagnostics, error.log = (Diagnostic("error", "it failed"),), "whole log"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert again.__dict__ == error.__dict__
    assert str(again) == "it failed"
    out = io.StringIO()
    again.dump(out)
    for part in ("NVCC compilation error: it failed", "Name: k.cu", "Options: -G", "2 line 2"):
        assert part in out.getvalue()


@pytest.mark.takes_seconds
@pytest.mark.parametrize(
    "imports",
    [
        pytest.param("import rtcompile.errors as ours, cupy; ours.adopt_cupy()", id="before"),
        pytest.param("import cupy, rtcompile.errors as ours", id="after"),
    ],
)
def test_cupys_except_clause_catches_errors_imported_before_or_after_cupy(imports):
    pytest.importorskip("cupy")
    code = f"""
{imports}
from rtcompile.errors import CompileError, CompileTimeout, DriverError, JitDisabled, JitifyError, ToolkitNotFound, UnsupportedArch
from cupy.cuda.compiler import CompileException, JitifyException
from cupy_backends.cuda.api.driver import CUDADriverError
assert issubclass(DriverError, CUDADriverError)
for ours, theirs in ((CompileError, CompileException), (CompileTimeout, CompileException),
                     (ToolkitNotFound, CompileException), (UnsupportedArch, CompileException), (JitDisabled, CompileException),
                     (JitifyError, JitifyException)):
    try:
        raise ours("m", "source", "name", ("-x",), "nvrtc")
    except theirs as error:
        assert (str(error), error.source, error.options) == ("m", "source", ("-x",)), error
        assert error.get_message() == "m"
"""
    python(code, check=True)


def failed(log: str, kind: str = "error", **more: str) -> errors.CompileError:
    """Return the error of a build whose compiler wrote `log`."""
    request = rtcompile.CompileRequest("int x;", arch="sm_80")
    failure = CompileFailure(kind, log, ("nvcc", "-cubin", "kernel.cu"), "nvcc")
    return as_error(failure, planned.plan(request, Settings.from_environ()), **more)


@pytest.mark.needs_compiler
@pytest.mark.parametrize("log", ["", "\n\n", " \t\n", "kernel.cu(1): warning #177-D: unused\n"])
def test_a_compiler_that_fails_without_a_message_is_reported(log):
    first = str(failed(log)).partition("\n")[0]
    assert first.startswith("error: nvcc failed and wrote ")
    assert "nvcc -cubin kernel.cu" in first


@pytest.mark.needs_compiler
def test_every_frontend_renders_the_advice_in_its_own_spelling():
    error = failed("kernel.cu(1): error: no", why_nvcc="not with backend='nvrtc'")
    [then] = error.advice
    assert then.startswith("NVCC could build it (not with backend='nvrtc'): ")
    assert str(error) == f"kernel.cu:1: error: no\n    1 | int x;\n{then}"
    assert pickle.loads(pickle.dumps(error)).styled() == error.styled()
    shown = "".join(text for _, text in render(error, frontend="command"))
    assert "NVCC could build it (not with --backend nvrtc): " in shown


@pytest.mark.parametrize("frontend", ["command", "cell"])
def test_hints_outside_python_contain_no_python(frontend):
    python = re.compile(
        r"(?<!--)\b(?:backend|arch|target|fallback|timeout|memory_limit|name_expressions?)=(?!\w)"
    )
    for known in MESSAGES:
        template = re.sub(r"\{(\w+)\}", r"\1", f"{known.cause} {known.fix}")  # any word will do
        text = spelled(template, frontend)
        assert not python.search(text), (known.id, text)


@pytest.mark.needs_compiler
def test_a_crash_by_a_name_expression_is_compiled_again_without_it():
    """NVRTC 12.9 crashes on the name expression, and without it reports the unknown name."""
    given = {"arch": "sm_80", "name_expressions": ["k<int>"], "fallback": "never"}
    concept = "template <class T> concept C = true;\ntemplate <C T> __global__ void k(T* x) {}\n"
    with pytest.raises(errors.CompileError) as caught:
        rtcompile.compile(concept, **given)
    assert not isinstance(caught.value, errors.CompilerCrashed)
    assert 'identifier "concept" is undefined' in str(caught.value).partition("\n")[0]
    dies = "template <class T> struct B { friend bool operator==() = default; };\n"
    source = dies + "template <class T> __global__ void k(T* x) {}\n"
    with pytest.raises(errors.CompilerCrashed) as caught:  # also without the name expression
        rtcompile.compile(source, options=["-std=c++20"], **given)
    assert str(caught.value).endswith(f"Reproducer: {caught.value.reproducer}")
