"""Precompiled headers: made after the third build, the same code as without, never a stale one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from rtcompile import toolkit
from rtcompile.compilers import nvrtc, pch_maker
from rtcompile.compilers import pch as precompiled
from rtcompile.files.headers import SearchDir
from rtcompile.request.units import Compiled, CompileFailure, Limits, TranslationUnit
from rtcompile.request.values import Arch
from rtcompile.workers import pool

pytestmark = pytest.mark.needs_compiler

PREFIX = "#include <cuda/std/__type_traits/is_same.h>\n"  # which counts as one of half a second
EXPENSIVE = "#include <cuda/std/type_traits>\n"  # half a second and more
KERNEL = "template <int N> __global__ void k(int* p) { *p = cuda::std::is_same<int, int>() + N; }\n"


@dataclass
class Builder:
    """Builds units, and knows what was precompiled for them."""

    cache: Path
    user: Path
    arch: str = "sm_90"
    flags: tuple[str, ...] = ("-default-device",)
    name: str = "kernel.cu"
    pch: bool = True
    cancellation: pool.Cancellation | None = None

    @property
    def search(self) -> tuple[SearchDir, ...]:
        return (SearchDir("user0", str(self.user)), *toolkit.current().search)

    def run(self, source: str, *expressions: str) -> Compiled | CompileFailure:
        toolchain = toolkit.current()
        search = self.search
        flags = (f"-arch={self.arch}", *self.flags, *(f"-I{d.path}" for d in search))
        unit = TranslationUnit(
            source, self.name, flags, expressions, "cubin", Arch.parse(self.arch)
        )
        return nvrtc.compile(
            unit,
            toolchain.require_nvrtc(),
            limits=Limits(),
            pch=self.pch,
            cache_dir=str(self.cache),
            search=search,
        )

    def compiled(self, source: str, *expressions: str) -> Compiled:
        outcome = self.run(source, *expressions)
        assert isinstance(outcome, Compiled), outcome
        return outcome

    def ahead(self, prefix: str = PREFIX) -> None:
        """Have the header made before any build."""
        nvrtc.precompile(*self.prefix_of(prefix))

    def prefix_of(self, source: str) -> Any:
        flags = (f"-arch={self.arch}", *self.flags, *(f"-I{d.path}" for d in self.search))
        unit = TranslationUnit(source, self.name, flags, (), "cubin", Arch.parse(self.arch))
        return unit, toolkit.current().require_nvrtc(), str(self.cache), self.search

    def without(self) -> Builder:
        return replace(self, pch=False)

    def ready(self, source: str = PREFIX + KERNEL) -> None:
        """Build until the header is there."""
        for _ in range(8):
            self.compiled(source)
            join_makers()
            if self.files(".pch"):
                return
        raise AssertionError("no header was made")

    def files(self, suffix: str) -> list[Path]:
        return sorted((self.cache / "pch").glob(f"*{suffix}"))


def join_makers() -> None:
    """Wait for the precompiled headers that are being made."""
    for thread in threading.enumerate():
        if thread.name == precompiled.MAKER:
            thread.join()


def used(outcome: Compiled | CompileFailure) -> bool:
    assert isinstance(outcome, Compiled), outcome
    return any("precompiled" in note for note in outcome.notes)


built = precompiled.Prefix.built


def built_in_half_a_second(self: precompiled.Prefix, trace: Any, _: float) -> None:
    """Note a build as if its headers had taken half a second to read, on any machine."""
    built(self, trace, 0.5)


def hasten(patch: Any) -> None:
    """Let makers give way to nobody, as the tests wait for them, and have one for a small header."""
    patch.setattr(pch_maker, "NICE", 0)
    patch.setattr(pch_maker, "NICE_WHEN_AWAITED", 0)
    patch.setattr(precompiled.Prefix, "built", built_in_half_a_second)


@pytest.fixture(autouse=True, scope="module")
def hastened() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        hasten(patch)
        yield


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[Builder]:
    (tmp_path / "user").mkdir()
    yield Builder(tmp_path / "cache", tmp_path / "user")
    join_makers()  # or they would be among those of the next test


@pytest.fixture
def stopped_maker(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The process ids of makers, which come to nothing until they are sent SIGCONT."""
    start, stopped = pch_maker.start, []

    def start_stopped(order: dict[str, Any], lock: int) -> int:
        stopped.append(start(order, lock))
        os.kill(stopped[-1], signal.SIGSTOP)
        return stopped[-1]

    monkeypatch.setattr(pch_maker, "start", start_stopped)
    yield stopped
    for pid in stopped:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """A builder whose precompiled header is there; for tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("warm")
    (folder / "user").mkdir()
    builder = Builder(folder / "cache", folder / "user")
    builder.ready()
    return builder


def test_the_first_build_makes_none(builder: Builder) -> None:
    assert not used(builder.compiled(PREFIX + KERNEL))
    join_makers()
    assert builder.files(".pch") == []


def test_the_first_build_uses_one_that_was_made_ahead(builder: Builder) -> None:
    builder.ahead()
    join_makers()
    assert used(builder.compiled(PREFIX + KERNEL))


def test_a_build_waits_for_one_that_is_being_made_as_long_as_it_would_spare(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if it had been begun a minute ago, for a source that takes as long to read: the making
    # takes the longer, the more others want the processor.
    monkeypatch.setattr(precompiled, "_START", -60.0)
    monkeypatch.setattr(precompiled, "_MOST_ASSUMED", 60.0)
    builder.ahead()
    assert used(builder.compiled(PREFIX + KERNEL))


@pytest.mark.usefixtures("stopped_maker")
def test_a_build_does_not_wait_for_one_that_was_only_just_begun(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precompiled, "_START", 60.0)  # however long it takes to come to the build
    builder.ahead()
    assert not used(builder.compiled(PREFIX + KERNEL))
    assert precompiled.max_wait(0.01) == 0 < precompiled.max_wait(0.1) < 0.1


def test_no_build_waits_for_one_that_is_overdue(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = nvrtc._prefix(*builder.prefix_of(PREFIX))
    assert prefix is not None
    # As if its maker had been at work for so long, since others have the processor.
    took = []
    for seconds in (1, 60):
        monkeypatch.setitem(precompiled._making, prefix.key, time.monotonic() - seconds)
        begun = time.monotonic()
        with prefix.wanted():
            took.append(time.monotonic() - begun)
    assert took[0] > precompiled.max_wait(0.5) > took[1]


def test_a_build_with_it_gives_what_one_without_gives(warm: Builder) -> None:
    source = PREFIX + KERNEL + "__global__ void w() { int unused; }"
    with_it = warm.compiled(source, "k<3>")
    without = warm.without().compiled(source, "k<3>")
    assert used(with_it)
    assert not used(without)
    assert with_it.code == without.code
    assert with_it.lowered_names == without.lowered_names
    assert with_it.log == without.log
    assert with_it.trace == without.trace


def milliseconds(outcome: Compiled | CompileFailure) -> float:
    found = outcome.milliseconds
    return found if isinstance(found, float) else found["front end"]


def test_with_it_a_source_is_read_in_half_the_time(builder: Builder) -> None:
    builder.ahead(EXPENSIVE)
    join_makers()
    for text in (KERNEL, "mistake;\n"):
        # Of several each the one from which other processes took least.
        with_it, without = [], []
        for _ in range(10):
            with_it.append(milliseconds(builder.run(EXPENSIVE + text)))
            without.append(milliseconds(builder.without().run(EXPENSIVE + text)))
            if min(with_it) < min(without) / 2:
                break
        assert min(with_it) < min(without) / 2


@pytest.mark.parametrize(
    "more",
    ["", 'struct S {};\n#include "more.h"\n'],
    ids=["that read nothing else", "that read more headers"],
)
def test_builds_with_it_share_a_process(
    warm: Builder, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    (warm.user / "more.h").write_text("")
    pids = set()
    outcome = nvrtc._outcome

    def noted(unit: TranslationUnit, answer: pool.Answer, *rest: Any) -> Any:
        pids.add(answer.value["pid"])
        return outcome(unit, answer, *rest)

    monkeypatch.setattr(nvrtc, "_outcome", noted)
    builds = [warm.compiled(f"{PREFIX}{more}{KERNEL}int n = {n};") for n in range(3)]
    assert all(used(built) for built in builds)
    assert len(pids) == 1


def test_a_long_name_of_the_temporary_folder_prevents_none(
    builder: Builder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 30) / ("longer" * 20)
    folder.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(folder))
    own_pool = pool.Pool(jobs=2)
    monkeypatch.setattr(pool, "_pool", own_pool)
    builder.ready()
    assert used(builder.compiled(PREFIX + KERNEL))
    own_pool.close()


def test_more_includes_after_the_prefix_are_traced(warm: Builder) -> None:
    (warm.user / "more.h").write_text("#define MORE 1\n")
    source = f'{PREFIX}struct S {{}};\n#include "more.h"\n{KERNEL}'
    with_it = warm.compiled(source)
    assert used(with_it)
    assert with_it.trace == warm.without().compiled(source).trace
    assert with_it.trace[-1] == str(warm.user / "more.h")


def test_its_users_depend_on_what_it_depended_on_and_on_what_they_read_again(
    builder: Builder,
) -> None:
    (builder.user / "twice.h").write_text("#ifdef AGAIN\n#include AGAIN\n#endif\n")
    (builder.user / "more.h").write_text("#define MORE 1\n")
    opening = f'{PREFIX}#include "twice.h"\nstruct S {{}};\n#define AGAIN "more.h"\n'
    builder.ready(opening + KERNEL)

    once = builder.compiled(f'{opening}#include "more.h"\n{KERNEL}')
    assert used(once)
    assert once.files is not None
    assert tuple(header.path for header in once.files.headers) == once.trace
    assert {str(builder.user / name) for name in ("twice.h", "more.h")} <= {*once.trace}

    # What it includes the second time is not among what the first time depended on.
    again = builder.compiled(f'{opening}#include "twice.h"\n{KERNEL}')
    assert used(again)
    assert again.files is not None
    assert {header.path for header in again.files.headers} == {*once.trace}


def test_another_process_uses_it(warm: Builder) -> None:
    script = f"""
        from pathlib import Path
        from tests.compilers.test_pch import *
        builder = Builder(Path({str(warm.cache)!r}), Path({str(warm.user)!r}))
        assert used(builder.compiled(PREFIX + KERNEL))
    """
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=root, check=True)


@pytest.mark.parametrize(
    ("change", "shared"),
    [
        pytest.param({"name": "other.cu"}, True, id="program name"),
        pytest.param({"flags": ("-default-device", "--maxrregcount=64")}, True, id="registers"),
        pytest.param({"flags": ("-default-device", "--ptxas-options=-O1")}, True, id="ptxas"),
        pytest.param({"flags": ("-default-device", "-DX=1")}, False, id="macro"),
        pytest.param({"flags": ("-default-device", "-std=c++20")}, False, id="standard"),
        pytest.param({"flags": ("-default-device", "-lineinfo")}, False, id="line info"),
        pytest.param({"arch": "sm_80"}, False, id="architecture"),
    ],
)
def test_it_serves_the_options_it_was_made_for(
    warm: Builder, change: dict[str, Any], shared: bool
) -> None:
    outcome = replace(warm, **change).compiled(PREFIX + KERNEL)
    assert used(outcome) is shared
    assert "precompiled header" not in outcome.log


def test_a_mistake_in_the_users_text_is_reported_as_without_it(warm: Builder) -> None:
    source = PREFIX + "mistake;\n"
    with_it, without = warm.run(source), warm.without().run(source)
    assert isinstance(with_it, CompileFailure)
    assert isinstance(without, CompileFailure)
    assert with_it.log == without.log
    assert warm.files(".pch")


def test_an_error_inside_a_header_is_confirmed_without_it(warm: Builder) -> None:
    (warm.user / "bad.h").write_text("mistake;\n")
    source = PREFIX + 'struct S {};\n#include "bad.h"\n'
    outcome = warm.run(source)
    assert isinstance(outcome, CompileFailure)
    assert outcome.log == warm.without().run(source).log
    assert used(warm.compiled(PREFIX + KERNEL))


def test_a_source_that_crashes_the_compiler_either_way_leaves_it_there(builder: Builder) -> None:
    crash = "template <class T> struct B { friend bool operator==() = default; };"
    builder.flags = ("-default-device", "-std=c++20")
    builder.ready()
    outcome = builder.run(PREFIX + crash)
    assert isinstance(outcome, CompileFailure)
    assert outcome.kind == "crash"
    assert used(builder.compiled(PREFIX + KERNEL))


def test_builds_at_once_have_it_made_without_waiting_for_another(builder: Builder) -> None:
    threads = [
        threading.Thread(target=builder.compiled, args=(PREFIX + KERNEL, f"k<{i}>"))
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    join_makers()
    assert used(builder.compiled(PREFIX + KERNEL))


def at_once(builder: Builder, count: int, siblings: int) -> list[Any]:
    """Build several in threads, as a batch of `siblings` would."""
    outcomes: list[Any] = []

    def build(number: int) -> None:
        precompiled.siblings.set(siblings)
        pool.Cancellation.current.set(builder.cancellation)
        try:
            outcomes.append(builder.compiled(PREFIX + KERNEL, f"k<{number}>"))
        except pool.Cancelled as cancelled:
            outcomes.append(cancelled)

    threads = [threading.Thread(target=build, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    if builder.cancellation is not None:
        while not any(thread.name == precompiled.MAKER for thread in threading.enumerate()):
            threading.Event().wait(0.001)
        builder.cancellation.cancel()
    for thread in threads:
        thread.join()
    return outcomes


@pytest.mark.parametrize("slots", [1, 2])
def test_most_of_a_large_batch_waits_for_it(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, slots: int
) -> None:
    monkeypatch.setattr(pool, "slots", lambda: slots)
    outcomes = at_once(builder, 4, siblings=32)
    assert [*map(used, outcomes)].count(True) >= 3


def test_a_large_batch_does_not_wait_for_what_spares_little(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "slots", lambda: 1)
    # Nor does it begin to wait: on a busy machine a tenth of a second is soon over.
    monkeypatch.setattr(precompiled, "_AT_ONCE", 60.0)
    monkeypatch.setattr(pch_maker, "start", None)
    monkeypatch.setattr(
        precompiled.Prefix, "built", lambda self, trace, _: built(self, trace, 0.001)
    )
    assert not any(map(used, at_once(builder, 4, siblings=4)))


def test_a_small_batch_waits_for_nothing(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "slots", lambda: 8)
    assert not any(map(used, at_once(builder, 2, siblings=2)))
    join_makers()


def test_a_batch_that_is_cancelled_waits_no_longer_and_its_header_is_made(
    builder: Builder, stopped_maker: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "slots", lambda: 1)
    builder.cancellation = pool.Cancellation()
    outcomes = at_once(builder, 3, siblings=3)
    # One goes ahead of them, and may have been built before the others were cancelled.
    assert [type(outcome) for outcome in outcomes].count(pool.Cancelled) >= 2
    assert builder.files(".pch") == []
    os.kill(stopped_maker[0], signal.SIGCONT)
    join_makers()
    assert len(builder.files(".pch")) == 1


def test_a_cheap_prefix_is_not_worth_it(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(  # as on a machine that does nothing else
        precompiled.Prefix, "built", lambda self, trace, _: built(self, trace, 0.015)
    )
    (builder.user / "cheap.h").write_text("#define CHEAP 1\n")
    source = '#include "cheap.h"\n__global__ void k() {}'
    for _ in range(3):
        builder.compiled(source)
    join_makers()
    assert builder.files(".pch") == []


def test_an_edited_header_is_never_served_stale(builder: Builder) -> None:
    header = builder.user / "mine.h"
    header.write_text("#define VALUE 1\n")
    os.utime(header, (0, 0))
    source = PREFIX + '#include "mine.h"\n__global__ void k(int* p) { *p = VALUE; }'
    builder.ready(source)
    before = builder.compiled(source)
    assert used(before)
    header.write_text("#define VALUE 2\n")
    edited = builder.compiled(source)
    assert not used(edited)
    assert edited.code != before.code


def test_a_header_under_edit_is_not_precompiled(builder: Builder) -> None:
    header = builder.user / "mine.h"
    source = PREFIX + '#include "mine.h"\n__global__ void k(int* p) { *p = VALUE; }'
    for value in range(4):
        header.write_text(f"#define VALUE {value}\n")
        builder.compiled(source)
        join_makers()
        assert builder.files(".pch") == []


def test_a_new_header_that_shadows_one_is_noticed(builder: Builder) -> None:
    builder.ready()
    shadow = builder.user / "cuda/std/__type_traits/is_same.h"
    shadow.parent.mkdir(parents=True)
    shadow.write_text("#error shadowed\n")
    outcome = builder.run(PREFIX + KERNEL)
    assert isinstance(outcome, CompileFailure)
    assert "shadowed" in outcome.log
