"""Tests of precompiled headers without idle cores: the second build has one made, code is the same, none is stale."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rtcompile import toolkit
from rtcompile.compilers import nvrtc, observed
from rtcompile.compilers import pch as precompiled
from rtcompile.files.headers import SearchDir
from rtcompile.request.units import Compiled, CompileFailure, Limits, TranslationUnit
from rtcompile.request.values import Arch
from rtcompile.workers import pool
from tests.jobs import Pool, at_once
from tests.tables import from_table

pytestmark = pytest.mark.needs_compiler

PREFIX = "#include <cuda/std/__type_traits/is_same.h>\n"  # counts as taking half a second
EXPENSIVE = "#include <cuda/std/type_traits>\n"  # takes half a second or more
KERNEL = "template <int N> __global__ void k(int* p) { *p = cuda::std::is_same<int, int>() + N; }\n"
# Half of the seconds that a header saves of one that counts as taking half a second.
HALF = precompiled._saved(0.5) / 2


@dataclass
class Builder:
    """Builds units, and lists their precompiled headers."""

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
        unit, library, cache = self.prefix_of(source, *expressions)
        folder = cache if self.pch else None
        return nvrtc.compile(unit, library, limits=Limits(), cache_dir=folder, search=self.search)

    def compiled(self, source: str, *expressions: str) -> Compiled:
        outcome = self.run(source, *expressions)
        assert isinstance(outcome, Compiled), outcome
        return outcome

    def prefix_of(self, source: str, *names: str) -> Any:
        flags = (f"-arch={self.arch}", *self.flags, *(f"-I{d.path}" for d in self.search))
        unit = TranslationUnit(source, self.name, flags, names, "cubin", Arch.parse(self.arch))
        return unit, toolkit.current().require_nvrtc(), str(self.cache)

    def prefix(self) -> precompiled.Prefix:
        """The prefix of a source, of which no header may be made."""
        prefix = nvrtc.prefix_of(*self.prefix_of(PREFIX), Limits(), self.search)
        assert prefix is not None
        prefix.make = lambda *_: pytest.fail("a header was made")
        return prefix

    def without(self) -> Builder:
        return replace(self, pch=False)

    def ready(self, source: str = PREFIX + KERNEL) -> None:
        """Build until the precompiled header exists."""
        for _ in range(4):
            self.compiled(source)
            if self.files(".pch"):
                return
        raise AssertionError("no header was made")

    def files(self, suffix: str) -> list[Path]:
        return sorted((self.cache / "pch").glob(f"*{suffix}"))

    def suffixes(self) -> list[str]:
        """Return the suffixes of all files beside the headers."""
        return sorted(path.suffix for path in (self.cache / "pch").iterdir())


def used(outcome: Compiled | CompileFailure) -> bool:
    assert isinstance(outcome, Compiled), outcome
    return any("precompiled" in note for note in outcome.notes)


def taking(patch: Any, seconds: float) -> None:
    """Record each build as if reading its headers had taken this long, on any machine."""
    patch.setattr(nvrtc, "_front_end", lambda *_: seconds * 1000)


def hasten(patch: Any) -> None:
    """Make a small prefix worth a precompiled header, on a machine without idle cores."""
    taking(patch, 0.5)
    patch.setattr(pool, "idle", lambda: 0)


@pytest.fixture(autouse=True, scope="module")
def hastened() -> Iterator[None]:
    precompiled._end()  # what idle cores make for tests of other modules
    with pytest.MonkeyPatch.context() as patch:
        hasten(patch)
        yield


@pytest.fixture
def builder(tmp_path: Path) -> Builder:
    (tmp_path / "user").mkdir()
    return Builder(tmp_path / "cache", tmp_path / "user")


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """A builder with a precompiled header, for tests that do not change it."""
    folder = tmp_path_factory.mktemp("warm")
    (folder / "user").mkdir()
    builder = Builder(folder / "cache", folder / "user")
    builder.ready()
    return builder


def test_no_header_is_made_whose_files_are_not_known(builder, monkeypatch):
    fields = observed.job_fields  # `nested` jobs trace includes, as an NVRTC without probes does
    monkeypatch.setattr(observed, "job_fields", lambda *unit: {**fields(*unit), "unobserved": True})
    for _ in range(4):
        assert builder.compiled(PREFIX + KERNEL).trace
        assert builder.files("") == builder.files(".record")


def test_sources_whose_prefix_other_directives_follow_share_the_header(builder):
    sources = [f"{PREFIX}#define PASS {n}\n{KERNEL}" for n in range(3)]
    assert [used(builder.compiled(source)) for source in sources] == [False, True, True]
    assert len(builder.files(".pch")) == 1


def assert_same(one, other):
    for field in ("code", "lowered_names", "log", "trace"):
        assert getattr(one, field) == getattr(other, field), field


def test_the_second_build_has_the_header_made_and_it_and_later_ones_give_the_same_code(builder):
    source = PREFIX + KERNEL + "__global__ void w() { int unused; }"
    without = builder.without().compiled(source, "k<3>")
    assert not used(without)
    assert not used(builder.compiled(source, "k<3>"))
    assert builder.suffixes() == [".record"]
    making = builder.compiled(source, "k<3>")
    assert used(making)
    assert builder.suffixes() == [".pch", ".record"]
    assert_same(making, without)
    assert making.files == without.files
    with_it = builder.compiled(source, "k<3>")
    assert used(with_it)
    assert_same(with_it, without)


@contextmanager
def being_made(builder: Builder, seconds: float) -> Iterator[None]:
    """Pretend that another thread began to create the header this long ago."""
    prefix = builder.prefix()
    precompiled._making[prefix.key] = time.monotonic() - seconds
    try:
        yield
    finally:
        del precompiled._making[prefix.key]


@pytest.mark.parametrize(
    ("seconds", "is_known", "waits"),
    [
        pytest.param(60.0, True, True, id="should be done by now"),
        pytest.param(0.0, True, False, id="has just begun"),
        pytest.param(60.0, False, False, id="takes nobody knows how long"),
    ],
)
def test_a_build_waits_for_a_header_that_is_nearly_done_for_half_of_what_it_would_save(
    builder, seconds, is_known, waits
):
    if is_known:
        builder.compiled(PREFIX + KERNEL)  # records that reading takes half a second
    prefix = builder.prefix()
    begun = time.monotonic()
    with being_made(builder, seconds), prefix.wanted(None):
        took = time.monotonic() - begun
    assert (took >= HALF) is waits


def milliseconds(outcome: Compiled | CompileFailure) -> float:
    found = outcome.milliseconds
    return found if isinstance(found, float) else found["front end"]


def test_with_the_header_a_source_is_read_in_half_the_time(builder):
    builder.ready(EXPENSIVE + KERNEL)
    for text in (KERNEL, "mistake;\n"):
        # Take the minimum of several times, which other processes disturbed least.
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
def test_builds_with_the_header_share_a_process(warm, monkeypatch, more):
    (warm.user / "more.h").write_text("")
    pids = set()
    outcome = nvrtc._outcome

    def noted(unit: TranslationUnit, reply: pool.JobResult, *rest: Any) -> Any:
        pids.add(reply.value["pid"])
        return outcome(unit, reply, *rest)

    monkeypatch.setattr(nvrtc, "_outcome", noted)
    builds = [warm.compiled(f"{PREFIX}{more}{KERNEL}int n = {n};") for n in range(3)]
    assert all(used(built) for built in builds)
    assert len(pids) == 1


def test_a_long_temporary_path_prevents_no_header(builder, tmp_path, monkeypatch):
    folder = tmp_path / ("long" * 30) / ("longer" * 20)
    folder.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", str(folder))
    own_pool = Pool(jobs=2)
    monkeypatch.setattr(pool, "_pool", own_pool)
    builder.ready()
    assert used(builder.compiled(PREFIX + KERNEL))
    own_pool.close()


def test_builds_depend_on_the_headers_in_the_precompiled_header_and_on_their_own(builder):
    (builder.user / "twice.h").write_text("#ifdef AGAIN\n#include AGAIN\n#endif\n")
    (builder.user / "more.h").write_text("#define MORE 1\n")
    opening = f'{PREFIX}#include "twice.h"\nstruct S {{}};\n#define AGAIN "more.h"\n'
    builder.ready(opening + KERNEL)

    source = f'{opening}#include "more.h"\n{KERNEL}'
    once = builder.compiled(source)
    assert used(once)
    assert once.trace == builder.without().compiled(source).trace
    assert once.files is not None
    assert tuple(header.path for header in once.files.headers) == once.trace
    assert {str(builder.user / name) for name in ("twice.h", "more.h")} <= {*once.trace}

    # The second inclusion's headers are not among the dependencies of the first.
    again = builder.compiled(f'{opening}#include "twice.h"\n{KERNEL}')
    assert used(again)
    assert again.files is not None
    assert {header.path for header in again.files.headers} == {*once.trace}


@from_table
def test_the_header_serves_only_its_own_options(warm, change, shared):
    outcome = replace(warm, **change).compiled(PREFIX + KERNEL)
    assert used(outcome) is shared
    assert "precompiled header" not in outcome.log


@pytest.mark.parametrize("text", ["mistake;\n", 'struct S {};\n#include "bad.h"\n'])
def test_a_mistake_behind_the_header_is_reported_the_same(warm, text):
    (warm.user / "bad.h").write_text("mistake;\n")
    with_it, without = warm.run(PREFIX + text), warm.without().run(PREFIX + text)
    assert isinstance(with_it, CompileFailure)
    assert with_it.log == without.log
    assert used(warm.compiled(PREFIX + KERNEL))


def test_a_source_that_always_crashes_the_compiler_keeps_the_header(builder):
    crash = "template <class T> struct B { friend bool operator==() = default; };"
    builder.flags = ("-default-device", "-std=c++20")
    builder.ready()
    outcome = builder.run(PREFIX + crash)
    assert isinstance(outcome, CompileFailure)
    assert outcome.kind == "crash"
    assert used(builder.compiled(PREFIX + KERNEL))


def test_one_of_several_simultaneous_builds_creates_the_header(builder):
    builder.compiled(PREFIX + KERNEL, "k<0>")
    at_once(*(partial(builder.compiled, PREFIX + KERNEL, f"k<{i}>") for i in range(3)))
    assert used(builder.compiled(PREFIX + KERNEL))


def batch(builder: Builder, count: int, expected: int) -> list[Any]:
    """Build several kernels in threads, as a batch of `expected` builds would."""
    outcomes: list[Any] = []

    def build(number: int) -> None:
        precompiled.expected.set(expected)
        pool.Cancellation.current.set(builder.cancellation)
        try:
            outcomes.append(builder.compiled(PREFIX + KERNEL, f"k<{number}>"))
        except pool.Cancelled as cancelled:
            outcomes.append(cancelled)

    threads = [threading.Thread(target=build, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    if builder.cancellation is not None:
        while not precompiled._making:
            time.sleep(0.001)
        builder.cancellation.cancel()
    for thread in threads:
        thread.join()
    return outcomes


@pytest.mark.parametrize("slots", [1, 2])
def test_most_of_a_large_batch_waits_for_the_header(builder, monkeypatch, slots):
    monkeypatch.setattr(pool, "slots", lambda: slots)
    outcomes = batch(builder, 5, expected=32)
    assert [*map(used, outcomes)].count(True) >= 3


def test_a_small_batch_creates_no_header(builder, monkeypatch):
    monkeypatch.setattr(pool, "slots", lambda: 8)
    assert not any(map(used, batch(builder, 2, expected=2)))
    assert builder.files(".pch") == []


def test_a_batch_that_is_cancelled_waits_no_longer(builder, monkeypatch):
    monkeypatch.setattr(pool, "slots", lambda: 1)
    builder.cancellation = pool.Cancellation()
    outcomes = batch(builder, 3, expected=3)
    # One precedes the others, and may be finished before their cancellation.
    assert [type(outcome) for outcome in outcomes].count(pool.Cancelled) >= 2
    assert not precompiled._making
    assert {path.suffix for path in (builder.cache / "pch").iterdir()} <= {".pch", ".record"}


def test_an_edited_header_is_neither_precompiled_soon_nor_served_stale(builder):
    header = builder.user / "mine.h"
    source = PREFIX + '#include "mine.h"\n__global__ void k(int* p) { *p = VALUE; }'
    for value in range(4):
        header.write_text(f"#define VALUE {value}\n")
        builder.compiled(source)
        assert builder.files(".pch") == []
    os.utime(header, (0, 0))
    builder.ready(source)
    before = builder.compiled(source)
    assert used(before)
    header.write_text("#define VALUE 4\n")
    edited = builder.compiled(source)
    assert not used(edited)
    assert edited.code != before.code


def test_a_new_header_that_shadows_one_is_noticed(builder):
    builder.ready()
    shadow = builder.user / "cuda/std/__type_traits/is_same.h"
    shadow.parent.mkdir(parents=True)
    shadow.write_text("#error shadowed\n")
    outcome = builder.run(PREFIX + KERNEL)
    assert isinstance(outcome, CompileFailure)
    assert "shadowed" in outcome.log
