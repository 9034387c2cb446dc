"""Tests of the gates and mutations: `make gates` fails a slower checkout, and each mutation is of code that exists."""

import random
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks import gates
from tests.mutations import MUTATIONS
from tests.processes import ran

ROOT = Path(__file__).parents[2]
HITS = "hits: compile, without CuPy"


CALLS = """
_planned, compile = compile, lambda *given, **more: _more() and _planned(*given, **more)
_more = lambda: [_less() for _ in range(200)]
_less = lambda: None
"""


@pytest.mark.needs_compiler
@pytest.mark.takes_seconds
@pytest.mark.parametrize(
    ("planted", "failed"),
    [pytest.param("", [], marks=pytest.mark.slow), (CALLS, [f"{HITS}: calls of functions"])],
)
def test_a_checkout_fails_if_it_does_more(planted, failed, tmp_path):
    new = tmp_path / "new"
    for folder in ("rtcompile", "include_shims"):
        shutil.copytree(ROOT / folder, new / folder)
    with (new / "rtcompile/api.py").open("a") as module:
        module.write(planted)
    words = ["benchmarks.gates", "--only", HITS, "--counts", "--base", ROOT, "--new", new]
    done = ran(sys.executable, "-m", *words, cwd=ROOT, timeout=300)
    assert done.returncode == bool(planted), done.stdout + done.stderr
    rows = done.stdout.partition("these fail:\n")[2].splitlines()
    assert [row.rpartition(",")[0] for row in rows] == failed


def pairs(factor, noise):
    """Return pairs of seconds (base, new) of a checkout that takes `factor` of the base's time."""
    draw = random.Random(1).lognormvariate
    return [(draw(0, noise), factor * draw(0, noise)) for _ in range(12)]


def test_a_ratio_fails_beyond_its_noise_whatever_one_disturbed_pair_says():
    within = [pairs(*each) for each in ((1.0, 0.0), (1.02, 0.0), (1.0, 0.3), (0.5, 0.05))]
    beyond = [pairs(*each) for each in ((1.04, 0.001), (1.3, 0.05), (3.0, 0.3))]
    within.append([*pairs(1.0, 0.01), (1.0, 50.0)])
    beyond.append([*pairs(1.3, 0.01), (50.0, 1.0)])
    assert [gates.ratio(each).is_slower for each in within] == [False] * len(within)
    assert [gates.ratio(each).is_slower for each in beyond] == [True] * len(beyond)


def test_a_count_fails_if_it_grows_by_more_than_a_tenth():
    base = {"modules imported": 20, "system calls": 1000, "processes started": 0}
    new = {"modules imported": 22, "system calls": 1101, "processes started": 1}
    assert gates.grown(base, new) == ["system calls", "processes started"]


def test_the_code_of_each_mutation_is_where_its_row_says():
    lost = [each.what for each in MUTATIONS if (ROOT / each.file).read_text().count(each.code) != 1]
    assert not lost
