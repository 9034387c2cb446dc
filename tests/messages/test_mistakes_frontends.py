"""Typical mistakes at the command and in a cell: the first line names the mistake, as in Python."""

import re
from pathlib import Path

import pytest

pytest.importorskip("cupy")
pytest.importorskip("IPython", reason="IPython is not installed: it is in the extra `test`")

from benchmarks.mistakes import FRONTENDS, frontends_of
from rtcompile.messages.rendering import spelled
from tests.mistakes import MISTAKES, Mistake, body

pytestmark = pytest.mark.needs_compiler

_MOST_LINES = 12  # of an error in a cell
_DOCUMENT = Path(__file__).parents[2] / "docs" / "mistakes.md"
_FRONTENDS = [frontend for frontend in FRONTENDS if frontend != "Python"]


@pytest.mark.some
@pytest.mark.parametrize("frontend", _FRONTENDS)
@pytest.mark.parametrize(
    "mistake",
    [
        # Their headers take seconds to read, and test_mistakes.py or test_hints.py tests their messages.
        pytest.param(
            one,
            marks=[pytest.mark.slow] * (one.name in ("all of CUB", "CuTe in C++14")),
            id=one.name,
        )
        for one in MISTAKES
        if not one.compiles
    ],
)
def test_the_first_line_contains_the_mistake(mistake, frontend):
    lines = FRONTENDS[frontend](mistake).split("\n")
    assert mistake.message in lines[0]
    assert spelled(mistake.hint, frontend) in " ".join(" ".join(lines[1:]).split())
    assert len(lines) <= _MOST_LINES, lines


@pytest.mark.parametrize(
    "name", ["a forgotten brace", "an unknown PTX instruction", "Hopper's instructions for sm_90"]
)
def test_an_error_without_a_line_gets_the_programs_line(name):
    (mistake,) = (one for one in MISTAKES if one.name == name)
    assert re.match(r"kernel\.cu:\d+: error: ", FRONTENDS["command"](mistake))
    assert re.match(r"cell\.cu:\d+: error: ", FRONTENDS["cell"](mistake))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("\n__global__ void k() {}" * 2, "previous definition at line 3)"),
        (f"\n\n{body('x[0] = 1')}", "`;` is missing behind `1` in line 5"),
        (f"\n\n{body('x[0] = 1')}", "With line 5 as `x[0] = 1;` the source compiles."),
    ],
)
def test_a_line_in_a_cells_message_and_hint_is_the_cells(source, said):
    shown = FRONTENDS["cell"](Mistake("with a comment", f"// a comment{source}", ""))
    assert said in " ".join(shown.split())


def test_the_document_is_written_from_the_mistakes():
    text = _DOCUMENT.read_text(encoding="utf-8")
    for mistake in MISTAKES:
        section = text.partition(f"## {mistake.name}\n")[2].partition("\n## ")[0]
        found = section.count(mistake.message)
        assert found >= len(frontends_of(mistake)), "run python -m benchmarks.mistakes"
