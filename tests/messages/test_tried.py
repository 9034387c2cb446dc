"""Changes of a source are compiled before a hint names them, and few of a source that takes long."""

import pytest

import rtcompile
from rtcompile.build.failures import _most_attempts
from rtcompile.diagnostic import Diagnostic
from rtcompile.messages.diagnostics import Attempts
from rtcompile.request.units import CompileFailure

_ERROR = Diagnostic("error", "expected a declaration", "k.cu", 1)
_OTHER = Diagnostic("error", "another one", "k.cu", 2)
_LOG = "k.cu({line}): {severity}: {message}\n\n"


def attempts_of(log: str | None, most: int = 9) -> tuple[Attempts, list[str]]:
    asked: list[str] = []

    def compiled(source: str, _: tuple[str, ...]) -> str | None:
        asked.append(source)
        return log

    return Attempts(compiled, "a\nb", [_ERROR, _OTHER], most), asked


@pytest.mark.parametrize(
    ("log", "proof"),
    [
        pytest.param("", "With line 2 as `c` the source compiles.", id="no message is left"),
        pytest.param(
            _LOG.format(line=2, severity="error", message="another one"),
            "With line 2 as `c` this error is gone.",
            id="another error stays",
        ),
        pytest.param(
            _LOG.format(line=1, severity="error", message="expected a declaration"),
            "",
            id="the error stays",
        ),
        pytest.param(
            _LOG.format(line=2, severity="error", message="a new one"), "", id="an error is new"
        ),
        pytest.param(
            _LOG.format(line=2, severity="warning", message="expression has no effect"),
            "",
            id="the changed line does nothing",
        ),
        pytest.param(None, "", id="the compiler did not finish"),
    ],
)
def test_a_change_is_named_for_what_it_does(log, proof):
    attempts, _ = attempts_of(log)
    assert attempts.proof(_ERROR, "a\nc") == proof


def test_no_more_changes_are_compiled_than_allowed_and_none_twice():
    attempts, asked = attempts_of("", most=2)
    proofs = [attempts.proof(_ERROR, f"a\n{letter}") for letter in "ccdde"]
    assert [bool(proof) for proof in proofs] == [True, True, True, True, False]
    assert asked == ["a\nc", "a\nd"]


@pytest.mark.parametrize(("milliseconds", "most"), [(20.0, 32), (1000.0, 4), (60_000.0, 1)])
def test_few_changes_are_tried_of_a_source_that_takes_long(milliseconds, most):
    failure = CompileFailure("error", "", (), "nvrtc", milliseconds=milliseconds)
    assert _most_attempts(failure) == most


@pytest.mark.needs_compiler
@pytest.mark.parametrize(
    ("source", "said", "not_said"),
    [
        pytest.param(
            "__device__ double dmul_(double a) { return a; }\n"
            "__global__ void k(double3* x) { x[0].x = dmul(x[0], x[1]); }",
            "dmul",
            "dmul_",
            id="it does not compile",
        ),
        pytest.param(
            "__global__ void k(float* x) { x[0] = expf(\u22120.5f); }",
            "Type - in its place",
            "Remove it",
            id="it compiles without the minus, and means something else",
        ),
    ],
)
def test_a_change_that_does_not_help_is_not_advised(source, said, not_said):
    with pytest.raises(rtcompile.CompileError) as caught:
        rtcompile.compile(source, arch="sm_80")
    assert said in str(caught.value)
    assert not_said not in caught.value.diagnostics[0].hint


@pytest.mark.needs_compiler
def test_the_same_failure_again_says_the_same_from_the_cache():
    source = "__global__ void k(float* x) { x[0] = 1 }"
    texts = []
    for _ in range(2):
        with pytest.raises(rtcompile.CompileError) as caught:
            rtcompile.compile(source, arch="sm_80")
        texts.append(str(caught.value).partition("\nCached")[0])
    assert texts[0] == texts[1]
    assert caught.value.diagnostics[0].hint.endswith("the source compiles.")
    assert caught.value.cached
