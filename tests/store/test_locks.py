"""A wait for another build ends within the time limit, even with a broken lock file or a changed clock."""

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import rtcompile
from rtcompile.build import planned
from rtcompile.compilers import nvrtc, observed
from rtcompile.errors import CompileTimeout, RtcompileWarning
from rtcompile.files import headers as file_times
from rtcompile.request.key import KeyInputs
from rtcompile.request.request import CompileRequest
from rtcompile.settings import Settings
from rtcompile.store import locks
from rtcompile.store.store import Store
from tests.key_inputs import make_key_inputs, make_object

REQUEST = CompileRequest('extern "C" __global__ void waited_for() {}', arch="sm_80")


def another_processs_store() -> Store:
    settings = Settings.from_environ()
    return Store(settings.cache_dir, on_disk=True, size=1 << 30)


@pytest.fixture
def inputs() -> KeyInputs:
    """The inputs of `REQUEST`, once its compiler is known."""
    rtcompile.compile('extern "C" __global__ void first() {}', arch="sm_80")
    return planned.plan(REQUEST, Settings.from_environ()).key_inputs


@pytest.fixture
def built_elsewhere(inputs: KeyInputs) -> Iterator[ExitStack]:
    """`REQUEST` is being built by another process until the stack is closed."""
    with ExitStack() as stack:
        stack.enter_context(another_processs_store().building(inputs))
        yield stack


def compile(timeout: float | None) -> rtcompile.ObjectCode:
    return rtcompile.compile(REQUEST.source, arch="sm_80", timeout=timeout)


@pytest.mark.needs_compiler
def test_waiting_for_another_process_counts_towards_the_time_limit(built_elsewhere):
    begin = time.monotonic()
    with pytest.raises(CompileTimeout, match=r"within its time limit of 0\.5 s: another thread or"):
        compile(timeout=0.5)
    assert time.monotonic() - begin >= 0.5


@pytest.mark.needs_compiler
def test_code_that_another_process_built_in_time_is_a_hit(built_elsewhere, inputs):
    code = rtcompile.compile(REQUEST.source, arch="sm_80", name="another.cu").code

    def finish() -> None:
        other = another_processs_store()
        other.add(inputs, make_object(code), observed.record((), ()))
        built_elsewhere.close()

    timer = threading.Timer(0.2, finish)
    timer.start()
    assert compile(timeout=30.0).build.hit == "disk"
    timer.join()


@pytest.mark.needs_compiler
def test_the_compiler_gets_the_time_that_waiting_left(built_elsewhere, monkeypatch):
    limits = []
    real = nvrtc.compile

    def noted(*given: Any, **more: Any) -> Any:
        limits.append(more["limits"].timeout.left)
        return real(*given, **more)

    monkeypatch.setattr(nvrtc, "compile", noted)
    lock = locks.machine_wide

    def lock_of_another(*given: Any) -> Any:
        # The lock is taken only now: the time limit has begun, however busy the machine is.
        threading.Timer(0.8, built_elsewhere.close).start()
        return lock(*given)

    monkeypatch.setattr(locks, "machine_wide", lock_of_another)
    compile(timeout=300.0)
    assert [0 < limit <= 300.0 - 0.8 for limit in limits] == [True]


def test_a_thread_waits_for_another_thread_no_longer_than_its_time_limit(tmp_path):
    kept = Store(str(tmp_path), on_disk=True, size=1 << 30)
    lefts = []

    def request_it() -> None:
        with kept.building(make_key_inputs(), 0.2) as seconds_left:
            lefts.append(seconds_left)

    with kept.building(make_key_inputs()):
        waiter = threading.Thread(target=request_it)
        waiter.start()
        waiter.join()
        assert lefts == [0.0]


@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir], ids=["fifo", "folder"])
@pytest.mark.parametrize("where", ["locks", "locks/key"])
def test_a_folder_or_pipe_under_a_locks_path_delays_nobody(tmp_path, where, plant):
    if where != "locks":
        (tmp_path / "locks").mkdir()
    plant(tmp_path / where)
    begin = time.monotonic()
    with locks.machine_wide(str(tmp_path / "locks" / "key")):
        pass
    assert time.monotonic() - begin < 60


def test_a_clock_that_is_stepped_back_delays_nobody(monkeypatch):
    an_hour_ago = file_times.file_clock_ns() - 3600 * 10**9
    monkeypatch.setattr(file_times, "file_clock_ns", lambda: an_hour_ago)
    begin = time.monotonic()
    # Files edited from now on get times of that clock, and the edits must be noticed.
    assert file_times.next_tick() == an_hour_ago
    assert time.monotonic() - begin < 60


def hang() -> None:
    time.sleep(30)


def refuse() -> None:
    raise OSError(37, "No locks available")


@pytest.mark.takes_seconds
@pytest.mark.parametrize(
    ("harm", "what"), [(hang, "did not respond in 1 s"), (refuse, "No locks available")]
)
def test_broken_locks_cost_one_second_and_one_warning(tmp_path, monkeypatch, harm, what):
    tried = []

    def flock(descriptor: int, operation: int) -> None:
        tried.append(descriptor)
        harm()

    monkeypatch.setattr(locks, "_working", {})
    monkeypatch.setattr(locks.fcntl, "flock", flock)
    with pytest.warns(RtcompileWarning, match=what) as warned:
        had = [taken(tmp_path / name) for name in "abc"]

    assert (had, len(warned), len(tried)) == ([False] * 3, 1, 1)


@pytest.mark.takes_seconds
def test_a_lock_acquired_while_python_was_suspended_works(tmp_path, monkeypatch):
    with_pythons_lock = ctypes.PyDLL(None)

    def flock(descriptor: int, operation: int) -> None:
        with_pythons_lock.usleep(1_200_000)
        time.sleep(0.1)  # lets the waiting thread run first

    monkeypatch.setattr(locks, "_working", {})
    with monkeypatch.context() as standing_still:
        standing_still.setattr(locks.fcntl, "flock", flock)
        assert taken(tmp_path / "a")


def taken(path: Path) -> bool:
    with locks.machine_wide(str(path), 5.0) as held:
        return held
