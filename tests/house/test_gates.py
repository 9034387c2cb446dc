"""Tests of `make gates`: it passes a checkout like the base, and fails one that is slower or does more."""

import random
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from benchmarks import gates
from tests.processes import ran

ROOT = Path(__file__).parents[2]
HITS, SMALL = "hits: compile, without CuPy", "small kernels in turn"


class Planted(NamedTuple):
    """Code at the end of a module, and what must fail for it: a row, with a count or, if that is none, a time."""

    module: str
    code: str
    row: str = HITS
    count: str | None = None


TWICE = """
def _is_part_unchanged(paths, *rest, _planned=_is_part_unchanged):
    for path in filter(None, paths.split(b"\\0")):
        os.stat(path)
    return _planned(paths, *rest)
"""
NOT_REUSED = """
def _run_beside(self, *given, _planned=Pool.run_beside):
    try:
        return _planned(self, *given)
    finally:
        self.close()
Pool.run_beside = _run_beside
"""
LOOK_UP = """
_planned, compile = compile, lambda *given, **more: _more() or _planned(*given, **more)
"""
SLEEPS = LOOK_UP + "_more = lambda: __import__('time').sleep(0.005)\n"
CALLS = LOOK_UP + "_more = lambda: [_less() for _ in range(200)] and None\n_less = lambda: None\n"
NO_HEADER = "Prefix._begin = lambda *given: None\n"

PLANTED = {
    "a hit sleeps": Planted("api", SLEEPS),
    "a hit calls more": Planted("api", CALLS, HITS, "calls of functions"),
    "logging is imported": Planted("api", "import logging\n", HITS, "modules imported"),
    "a header is never made": Planted("compilers/pch", NO_HEADER, "CuTe, edited", "system calls"),
    "a worker is not reused": Planted("workers/pool", NOT_REUSED, SMALL, "processes started"),
    "headers are read twice": Planted("files/fileset", TWICE, "CuTe, cached", "system calls"),
}


def judged(folder: Path, planted: Planted, *arguments: str) -> tuple[int, str]:
    """Return the exit status and the output of a comparison with a copy of this checkout, changed so."""
    new = folder / "new"
    shutil.copytree(ROOT / "rtcompile", new / "rtcompile")
    shutil.copytree(ROOT / "include_shims", new / "include_shims")
    with (new / f"rtcompile/{planted.module}.py").open("a") as module:
        module.write(planted.code)
    words = ["benchmarks.gates", "--only", planted.row, "--base", ROOT, "--new", new, *arguments]
    done = ran(sys.executable, "-m", *words, cwd=ROOT, timeout=300)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.needs_compiler
@pytest.mark.takes_seconds
def test_a_checkout_that_does_no_more_passes(tmp_path):
    status, said = judged(tmp_path, Planted("api", ""), "--counts")
    assert status == 0, said
    assert said.endswith("no row fails\n")


@pytest.mark.needs_compiler
@pytest.mark.takes_seconds
@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(
            planted,
            id=what,
            # One count and one row stand for all: each takes seconds.
            marks=[pytest.mark.slow] * (planted.code != CALLS),
        )
        for what, planted in PLANTED.items()
    ],
)
def test_a_checkout_that_does_more_fails(planted, tmp_path):
    if planted.count in ("system calls", "processes started") and not shutil.which("strace"):
        pytest.skip("strace, which counts system calls and processes, is not installed")
    status, said = judged(tmp_path, planted, *["--counts"] * bool(planted.count))
    assert status == 1, said
    failed = said.partition("these fail:")[2]
    assert f"{planted.row}: {planted.count or ''}" in failed
    assert planted.count or "of the base's time" in failed


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
