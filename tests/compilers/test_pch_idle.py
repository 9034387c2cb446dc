"""Tests of precompiled headers that an idle core makes while the first build with a prefix runs without."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rtcompile.compilers import pch
from rtcompile.request.units import CompileFailure
from rtcompile.workers import pool
from tests.compilers.test_pch import EXPENSIVE, KERNEL, assert_same, builder, taking, used
from tests.processes import python

pytestmark = pytest.mark.needs_compiler

__all__ = ["builder"]

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def idle(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a core be idle, and reading a header take a second, on any machine."""
    monkeypatch.setattr(pool, "idle", lambda: 1)
    monkeypatch.setattr(pch.Prefix, "MAX_SECONDS", 600.0)  # other processes precede such a job
    taking(monkeypatch, 1.0)
    monkeypatch.setattr(pch, "_unused", {})
    yield
    finish()


def finish() -> None:
    """Wait until the headers are made."""
    for thread, _ in [*pch._unused.values()]:
        thread.join()


def test_the_second_build_uses_what_an_idle_core_made_beside_the_first(builder):
    source = EXPENSIVE + KERNEL + "__global__ void w() { int unused; }"
    assert not used(builder.compiled(source, "k<3>"))
    finish()
    assert builder.suffixes() == [".pch", ".record"]
    with_it = builder.compiled(source, "k<3>")
    without = builder.without().compiled(source, "k<3>")
    assert used(with_it)
    assert_same(with_it, without)


@pytest.mark.slow
def test_of_the_headers_that_idle_cores_made_few_are_unused(builder, monkeypatch):
    monkeypatch.setattr(pch, "_MOST_UNUSED", 1)
    monkeypatch.setattr(pool, "idle", lambda: 0)
    builder.compiled(EXPENSIVE + KERNEL)
    finish()
    assert builder.suffixes() == [".record"]  # where no core is idle none is made
    monkeypatch.setattr(pool, "idle", lambda: 1)
    made = []
    for number in range(3):
        builder.flags = ("-default-device", f"-DNUMBER={number}")
        builder.compiled(EXPENSIVE + KERNEL)
        finish()
        made.append(len(builder.files(".pch")))
        if number == 1:  # once the first was used, another may be made
            builder.flags = ("-default-device", "-DNUMBER=0")
            assert used(builder.compiled(EXPENSIVE + KERNEL))
    assert made == [1, 1, 2]


@pytest.mark.slow
def test_an_error_in_the_prefix_makes_none_and_is_reported_once(builder):
    (builder.user / "bad.h").write_text("mistake;\n")
    source = EXPENSIVE + '#include "bad.h"\n' + KERNEL
    logs = []
    for _ in range(2):
        outcome = builder.run(source)
        assert isinstance(outcome, CompileFailure)
        logs.append(outcome.log)
        finish()
    assert logs == [builder.without().run(source).log] * 2
    assert builder.files(".pch") == []


def test_after_a_program_that_ended_meanwhile_the_next_build_creates_it(builder, monkeypatch):
    script = f"""
        from pathlib import Path
        from tests.compilers.test_pch import *
        pool.idle = lambda: 1
        taking(pytest.MonkeyPatch(), 1.0)
        precompiled._SOON = 0.4
        Builder(Path({str(builder.cache)!r}), Path({str(builder.user)!r})).compiled(EXPENSIVE + KERNEL)
    """
    python(script, cwd=ROOT, check=True)
    assert {*builder.suffixes()} <= {".pch", ".record"}  # it may just have been finished
    monkeypatch.setattr(pool, "idle", lambda: 0)
    builder.compiled(EXPENSIVE + KERNEL)
    assert len(builder.files(".pch")) == 1
