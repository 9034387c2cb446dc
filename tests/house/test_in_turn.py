"""`make test` runs each row of a matrix marked `in_turn` once, with the values in turn, and `some` rows of others."""

import sys
from pathlib import Path

import pytest

from tests.documentation import ROOT
from tests.processes import ran

MATRIX = """
import pytest

@pytest.fixture(params=["x", "y"])
def of_a_fixture(request): return request.param

@pytest.mark.in_turn("column")
@pytest.mark.parametrize("column", "xy")
@pytest.mark.parametrize("row", range(12))
def test_above(row, column): pass

@pytest.mark.in_turn("column")
@pytest.mark.parametrize("row", range(12))
@pytest.mark.parametrize("column", "xy")
def test_below(row, column): pass

@pytest.mark.in_turn("of_a_fixture")
@pytest.mark.parametrize("row", range(12))
def test_of_a_fixture(row, of_a_fixture): pass

@pytest.mark.some(3)
@pytest.mark.parametrize("row", [pytest.param(99, marks=pytest.mark.slow), *range(12)])
def test_some(row): pass

@pytest.mark.some(1, of_a_fixture="y")
@pytest.mark.parametrize("row", range(2))
def test_some_of_a_value(row, of_a_fixture): pass
"""


@pytest.mark.takes_seconds
def test_each_row_runs_once_and_each_value_occurs(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        "from tests.conftest import pytest_collection_modifyitems\n"
    )
    (tmp_path / "test_matrix.py").write_text(MATRIX)
    markers = 'markers = ["slow: slow", "in_turn(parameter): in turn", "some(count): some"]'
    (tmp_path / "pyproject.toml").write_text(f"[tool.pytest.ini_options]\n{markers}\n")
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not slow"]
    environ = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = ran(*words, "test_matrix.py", cwd=tmp_path, env=environ, check=True)
    for name in ("test_above", "test_below", "test_of_a_fixture"):
        chosen = [
            line.partition("[")[2] for line in done.stdout.splitlines() if f"::{name}[" in line
        ]
        values = [value for each in chosen for value in each.strip("]").split("-")]
        assert sorted(int(value) for value in values if value.isdecimal()) == [*range(12)], name
        assert {"x", "y"} <= {*values}, name
    for name, expected in (("some", {"0", "4", "8"}), ("some_of_a_value", {"x-0", "x-1", "y-0"})):
        lines = [line for line in done.stdout.splitlines() if f"::test_{name}[" in line]
        assert {line.rpartition("[")[2].strip("]") for line in lines} == expected
