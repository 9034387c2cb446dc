"""The process that makes a precompiled header: when it is begun, what it is, and what it leaves."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from rtcompile.compilers import pch, pch_maker
from rtcompile.compilers.pch import worth_making
from rtcompile.compilers.pch_maker import Record
from rtcompile.request.units import CompileFailure
from rtcompile.workers import pool
from tests.compilers.test_pch import (
    EXPENSIVE,
    KERNEL,
    PREFIX,
    Builder,
    at_once,
    builder,
    built,
    hastened,
    join_makers,
    used,
)
from tests.jobs import until

pytestmark = pytest.mark.needs_compiler

__all__ = ["builder", "hastened"]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process ids of the makers that a test starts."""
    started: list[int] = []
    start = pch_maker.start

    def noting(order: dict[str, Any], lock: int) -> int:
        started.append(start(order, lock))
        return started[-1]

    monkeypatch.setattr(pch_maker, "start", noting)
    return started


def record(builder: Builder) -> Record:
    (file,) = builder.files(".record")
    found = Record.read(str(file))
    assert found is not None
    return found


def names(builder: Builder) -> list[str]:
    return sorted(path.suffix for path in (builder.cache / "pch").iterdir())


def descendants(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [found for child in text.split() for found in (int(child), *descendants(int(child)))]


# --- the rule ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("front_end", "builds"),
    [
        pytest.param(1.4, 3, id="CuTe"),
        pytest.param(0.5, 3, id="CUB"),
        pytest.param(0.1, 5, id="a tenth of a second"),
        pytest.param(0.08, 6, id="CuPy's own"),
        pytest.param(0.05, 9, id="half of that"),
    ],
)
def test_a_prefix_of_an_edited_program_is_worth_a_header_from_this_build_on(
    front_end: float, builds: int
) -> None:
    assert not worth_making(builds - 1, front_end, repeats=builds - 2)
    assert worth_making(builds, front_end, repeats=builds - 1)


@pytest.mark.parametrize(
    ("front_end", "builds"),
    [
        pytest.param(1.4, 23, id="CuTe"),
        pytest.param(0.1, 62, id="a tenth of a second"),
    ],
)
def test_a_prefix_of_programs_that_all_differ_needs_more_builds(
    front_end: float, builds: int
) -> None:
    assert not worth_making(builds - 1, front_end, repeats=0)
    assert worth_making(builds, front_end, repeats=0)


def test_what_spares_next_to_nothing_is_never_worth_one() -> None:
    assert not worth_making(1_000_000, 0.02)


def test_after_each_failed_attempt_more_builds_are_needed() -> None:
    needed = [
        next(builds for builds in range(1 << 20) if worth_making(builds, 1.4, makings))
        for makings in range(6)
    ]
    assert needed == sorted(needed)
    assert needed[-1] > 8 * needed[0]
    assert not worth_making(1 << 20, 1.4, 2000)


@pytest.mark.parametrize(
    ("builds", "front_end", "worth"),
    [(4, 1.4, True), (1, 1.4, False), (24, 0.06, True), (4, 0.06, False), (1000, 0.01, False)],
)
def test_a_batch_waits_for_a_header_that_is_sooner_made_than_done_without(
    builds: int, front_end: float, worth: bool
) -> None:
    assert pch.worth_waiting(builds, front_end) is worth


# --- when it is begun ----------------------------------------------------------------------------


def test_it_is_made_after_a_program_that_has_ended(builder: Builder) -> None:
    script = f"""
        from pathlib import Path
        from tests.compilers.test_pch import *
        hasten(pytest.MonkeyPatch())
        Builder(Path({str(builder.cache)!r}), Path({str(builder.user)!r})).compiled(PREFIX + KERNEL)
        os._exit(0)
    """
    for _ in range(3):
        assert builder.files(".pch") == []
        subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, check=True)
    until(lambda: record(builder).image)
    assert used(builder.compiled(PREFIX + KERNEL))


def test_a_mistake_in_the_users_text_counts_as_a_build(builder: Builder) -> None:
    for _ in range(3):
        assert isinstance(builder.run(PREFIX + "mistake;\n"), CompileFailure)
    join_makers()
    assert used(builder.compiled(PREFIX + KERNEL))


def test_a_prefix_of_less_than_a_tenth_of_a_second_is_made_when_it_is_used_often(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pch.Prefix, "built", lambda self, trace, _: built(self, trace, 0.08))
    outcomes = []
    for _ in range(7):
        outcomes.append(used(builder.compiled(PREFIX + KERNEL)))
        join_makers()
    assert outcomes == [False] * 6 + [True]


def test_one_is_made_at_a_time(builder: Builder, makers: list[int]) -> None:
    for _ in range(3):
        builder.compiled(PREFIX + KERNEL)
    script = f"""
        from pathlib import Path
        from tests.compilers.test_pch import *
        pch_maker.start = None
        Builder(Path({str(builder.cache)!r}), Path({str(builder.user)!r})).compiled(PREFIX + KERNEL)
    """
    os.kill(makers[0], signal.SIGSTOP)
    try:
        subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=ROOT, check=True)
    finally:
        os.kill(makers[0], signal.SIGCONT)
    join_makers()
    assert len(makers) == 1
    assert record(builder).image


def test_without_locks_none_is_made(
    builder: Builder, makers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    for _ in range(3):
        builder.compiled(PREFIX + KERNEL)
    assert makers == []


def test_switched_off_none_is_counted_or_made(builder: Builder, makers: list[int]) -> None:
    for _ in range(3):
        builder.without().compiled(PREFIX + KERNEL)
    assert makers == []
    assert not (builder.cache / "pch").exists()


def test_with_no_process_to_be_had_the_build_is_right(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(pch_maker, "start", refuse)
    for _ in range(3):
        builder.compiled(PREFIX + KERNEL)
    assert names(builder) == [".record"]


# --- what it is ----------------------------------------------------------------------------------


def test_it_is_detached_and_gives_way(
    builder: Builder, makers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pch_maker, "NICE", 10)
    monkeypatch.setenv("A_PASSWORD", "not for compilers")
    ours, theirs = os.pipe()
    os.set_inheritable(theirs, True)
    for _ in range(3):
        builder.compiled(EXPENSIVE + KERNEL)
    (pid,) = makers
    until(lambda: descendants(pid))
    os.kill(pid, signal.SIGSTOP)
    try:
        assert os.getsid(pid) == pid
        assert os.getpriority(os.PRIO_PROCESS, pid) >= 10
        assert os.getpriority(os.PRIO_PROCESS, descendants(pid)[0]) >= 10
        process = Path("/proc", str(pid))
        if (process / "autogroup").exists():  # there a nice value counts within a session only
            assert (process / "autogroup").read_text().endswith("nice 10\n")
        assert b"A_PASSWORD" not in (process / "environ").read_bytes()
        standard = {os.readlink(process / "fd" / name) for name in "012"}
        assert standard == {"/dev/null"}
        assert os.readlink(process / "cwd") == "/"
        pipes = {os.readlink(file) for file in (process / "fd").iterdir()}
        assert os.readlink(f"/proc/self/fd/{theirs}") not in pipes
    finally:
        os.kill(pid, signal.SIGCONT)
        os.close(ours)
        os.close(theirs)
    join_makers()
    assert not process.exists()  # no zombie


def test_killed_it_takes_its_compiler_along_and_the_next_one_is_made(
    builder: Builder, makers: list[int]
) -> None:
    for _ in range(3):
        builder.compiled(EXPENSIVE + KERNEL)
    until(lambda: len(descendants(makers[0])) >= 2)  # its zygote, and the compiler
    theirs = descendants(makers[0])
    os.kill(makers[0], signal.SIGKILL)
    join_makers()
    until(lambda: not any(Path("/proc", str(pid)).exists() for pid in theirs))
    assert not record(builder).image
    assert set(names(builder)) <= {".record", ".lock"}
    builder.compiled(EXPENSIVE + KERNEL)
    builder.compiled(EXPENSIVE + KERNEL)
    join_makers()
    assert names(builder) == [".pch", ".record"]
    assert used(builder.compiled(EXPENSIVE + KERNEL))


def test_a_batch_does_not_wait_again_where_a_making_came_to_nothing(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    orders: list[dict[str, Any]] = []

    def refuse(order: dict[str, Any], _: int) -> int:
        orders.append(order)
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(pch_maker, "start", refuse)
    monkeypatch.setattr(pch_maker, "NICE_WHEN_AWAITED", "awaited")
    monkeypatch.setattr(pool, "slots", lambda: 1)
    for _ in range(3):
        at_once(builder, 2, siblings=8)
        assert [order["nice"] for order in orders].count("awaited") == 1


@pytest.mark.parametrize(("limit", "value"), [("_BYTES", 1 << 20), ("_SECONDS", 0)])
def test_beyond_its_limits_it_leaves_nothing(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(pch_maker, limit, value)
    for _ in range(3):
        builder.compiled(PREFIX + KERNEL)
    join_makers()
    assert names(builder) == [".record"]
    assert not record(builder).image


def test_another_version_of_it_makes_nothing(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pch_maker, "__version__", "0.0")
    for _ in range(3):
        builder.compiled(PREFIX + KERNEL)
    join_makers()
    assert names(builder) == [".record"]


# --- who edits a kernel, and who builds many once --------------------------------------------------


def test_kernels_that_are_built_once_each_have_no_header_made(builder: Builder) -> None:
    for number in range(4):
        builder.compiled(f"{PREFIX}__global__ void k{number}(int* p) {{ *p = 1; }}")
    join_makers()
    assert builder.files(".pch") == []


def test_an_edited_kernel_has_one_made(builder: Builder) -> None:
    for number in range(3):
        text = f"__global__ void __launch_bounds__({64 + number}) k(int* p) {{ *p = {number}; }}"
        builder.compiled(PREFIX + text)
    join_makers()
    assert len(builder.files(".pch")) == 1
