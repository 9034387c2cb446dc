"""Tests of `make gates`: it passes a checkout like the base, and fails one that is slower or does more."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROW = "hits: compile, without CuPy"
# What is planted at the end of `rtcompile.api`: each look-up then does something more.
PLANTED = """
_planned, compile = compile, lambda *given, **more: _more() or _planned(*given, **more)
"""
SLEEPS = PLANTED + "_more = lambda: __import__('time').sleep(0.001)\n"
CALLS = PLANTED + "_more = lambda: [_less() for _ in range(200)] and None\n_less = lambda: None\n"


def judged(folder: Path, planted: str, *arguments: str) -> tuple[int, str]:
    """Return the exit status and the output of a comparison with a copy of this checkout, changed so."""
    new = folder / "new"
    shutil.copytree(ROOT / "rtcompile", new / "rtcompile")
    shutil.copytree(ROOT / "include_shims", new / "include_shims")
    with (new / "rtcompile/api.py").open("a") as api:
        api.write(planted)
    command = ["benchmarks.gates", "--only", ROW, "--base", str(ROOT), "--new", str(new)]
    done = subprocess.run(
        [sys.executable, "-m", *command, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.needs_compiler
@pytest.mark.takes_seconds
def test_a_checkout_that_does_no_more_passes(tmp_path: Path) -> None:
    status, said = judged(tmp_path, "", "--counts")
    assert status == 0, said
    assert said.endswith("no row fails\n")


@pytest.mark.needs_compiler
@pytest.mark.takes_seconds
def test_a_checkout_that_does_more_fails(tmp_path: Path) -> None:
    status, said = judged(tmp_path, CALLS, "--counts")
    assert status == 1, said
    assert f"{ROW}: calls of functions" in said.partition("these fail:")[2]


@pytest.mark.needs_compiler
@pytest.mark.takes_seconds
def test_a_slower_checkout_fails(tmp_path: Path) -> None:
    status, said = judged(tmp_path, SLEEPS)
    assert status == 1, said
    assert f"{ROW}: " in said.partition("these fail:")[2]
    assert "of the base's time" in said
