"""Tests of when a build creates a precompiled header, and of failures to create one."""

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from rtcompile.compilers import nvrtc, pch
from rtcompile.compilers.pch import PrefixRecord, worth_making
from rtcompile.request.units import CompileFailure, Limits
from rtcompile.workers import pool
from tests.compilers.test_pch import KERNEL, PREFIX, Builder, batch, builder, hastened, taking, used
from tests.processes import python

pytestmark = pytest.mark.needs_compiler

__all__ = ["builder", "hastened"]

ROOT = Path(__file__).parents[2]


def record(builder: Builder) -> PrefixRecord:
    (file,) = builder.files(".record")
    return PrefixRecord.read(str(builder.cache), file.stem)


# --- the rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("front_end", "builds"),
    [(1.4, 2), (0.1, 3), (0.06, 4), (0.03, 7)],
    ids=["CuTe", "a tenth of a second", "CuPy's own", "half of that"],
)
def test_the_build_from_which_a_header_would_have_paid_off(front_end, builds):
    assert not worth_making(builds - 1, front_end)
    assert worth_making(builds, front_end)
    assert not worth_making(1_000_000, 0.02)  # it saves almost nothing


def test_after_each_failed_attempt_more_builds_are_needed():
    needed = [
        next(builds for builds in range(1 << 20) if worth_making(builds, 1.4, failures))
        for failures in range(6)
    ]
    assert needed == sorted(needed)
    assert needed[-1] > 8 * needed[0]
    assert not worth_making(1 << 20, 1.4, 2000)


@pytest.mark.parametrize(
    ("uses", "front_end", "begun", "waited", "worth"),
    [
        *[(4, 1.4, 0, 0, True), (1, 1.4, 0, 0, False), (24, 0.06, 0, 0, True)],
        *[(2, 0.06, 0, 0, False), (1000, 0.01, 0, 0, False)],
        *[(0.5, 0.1, 60, 0, True), (0.5, 0.1, 60, 0.1, False), (0.5, 0.01, 60, 0, False)],
        (0.5, 1.4, 1.4, 0, False),
    ],
)
def test_a_build_waits_for_a_header_if_that_is_faster(uses, front_end, begun, waited, worth):
    assert pch.is_worth_waiting(uses, front_end, begun, waited) is worth


# --- when a header is created -----------------------------------------------------------------------------


def test_another_program_creates_the_header_after_the_counted_builds(builder):
    builder.compiled(PREFIX + KERNEL)
    script = f"""
        from pathlib import Path
        from tests.compilers.test_pch import *
        hasten(pytest.MonkeyPatch())
        Builder(Path({str(builder.cache)!r}), Path({str(builder.user)!r})).compiled(PREFIX + KERNEL)
        os._exit(0)
    """
    python(script, cwd=ROOT, check=True)
    assert record(builder).image
    assert used(builder.compiled(PREFIX + KERNEL))


def test_a_build_with_a_mistake_counts_and_creates_the_header(builder):
    logs = []
    for _ in range(3):
        outcome = builder.run(PREFIX + "mistake;\n")
        assert isinstance(outcome, CompileFailure)
        logs.append(outcome.log)
    assert len({*logs}) == 1
    assert used(builder.compiled(PREFIX + KERNEL))


def test_a_short_prefix_is_precompiled_if_used_often(builder, monkeypatch):
    taking(monkeypatch, 0.03)
    outcomes = [used(builder.compiled(PREFIX + KERNEL)) for _ in range(7)]
    assert outcomes == [False] * 6 + [True]


@pytest.mark.parametrize("more", ['#include "more.h"', "#if __has_include(<more.h>)\n#endif"])
def test_what_a_build_includes_after_the_prefix_is_not_in_the_header(builder, more):
    later = builder.user / "more.h"
    later.write_text("")
    source = f"{PREFIX}struct S {{}};\n{more}\n{KERNEL}"
    assert [used(builder.compiled(source)) for _ in range(3)] == [False, True, True]
    paths = [header.path for header in record(builder).dependencies.headers]
    assert paths
    assert str(later) not in paths
    later.write_text("// changed\n")
    assert used(builder.compiled(source))


@pytest.mark.parametrize(("timeout", "there"), [(None, 1), (600.0, 1), (20.0, 0)])
def test_a_build_with_little_time_left_creates_none(builder, timeout, there):
    builder.compiled(PREFIX + KERNEL)
    unit, library, cache = builder.prefix_of(PREFIX + KERNEL)
    limits = Limits(timeout)
    nvrtc.compile(unit, library, limits=limits, cache_dir=cache, search=builder.search)
    assert len(builder.files(".pch")) == there


def test_without_locks_no_header_is_created(builder, monkeypatch):
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    for _ in range(3):
        builder.compiled(PREFIX + KERNEL)
    assert builder.files(".pch") == []


def test_a_build_does_not_wait_for_a_header_of_another_process(builder):
    builder.compiled(PREFIX + KERNEL)
    (file,) = builder.files(".record")
    with (builder.cache / "locks" / f"pch-{file.stem[:3]}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not used(builder.compiled(PREFIX + KERNEL))
        assert builder.files(".pch") == []
    builder.ready()


def test_with_headers_turned_off_nothing_is_counted_or_created(builder):
    for _ in range(3):
        builder.without().compiled(PREFIX + KERNEL)
    assert not (builder.cache / "pch").exists()


# --- failures ------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Let every compile that creates a header fail; return the paths of those headers."""
    tried: list[bytes] = []
    run = pool.run

    def run_or_fail(job: Any, *rest: Any) -> Any:
        made = (job() if callable(job) else job).arguments.get("create_pch", b"")
        if not made:
            return run(job, *rest)
        tried.append(made)
        Path(os.fsdecode(made)).write_bytes(b"half a header")
        return pool.Crash("crash", 9, "it was killed", b"")

    monkeypatch.setattr(pool, "run", run_or_fail)
    return tried


def test_a_build_whose_header_fails_is_repeated_without_one(builder, monkeypatch):
    code = builder.compiled(PREFIX + KERNEL).code
    with monkeypatch.context() as patch:
        tried = failing(patch)
        outcomes = [builder.compiled(PREFIX + KERNEL) for _ in range(2)]
    assert [outcome.code for outcome in outcomes] == [code] * 2
    assert len(tried) == 1  # the next one must save more
    assert record(builder).failures == 1
    assert builder.suffixes() == [".record"]
    assert not pch._making


def test_a_batch_continues_after_a_failed_header(builder, monkeypatch):
    monkeypatch.setattr(pool, "slots", lambda: 1)
    with monkeypatch.context() as patch:
        failing(patch)
        outcomes = batch(builder, 3, expected=8)
    assert not any(map(used, outcomes))
    assert not pch._making


def test_a_build_that_is_interrupted_leaves_nothing(builder, monkeypatch):
    builder.compiled(PREFIX + KERNEL)

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pool, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            builder.compiled(PREFIX + KERNEL)
    assert builder.suffixes() == [".record"]
    builder.ready()
