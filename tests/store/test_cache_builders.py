"""Of many threads or processes that request one build, one compiles it, even if others fail, die or fork."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rtcompile.compilers import observed
from rtcompile.errors import CompileError, CompilerCrashed
from rtcompile.settings import Settings
from rtcompile.store import locks, store
from rtcompile.store.store import Store
from tests.interrupts import interrupted
from tests.jobs import at_once
from tests.key_inputs import add, make_key_inputs, make_object, open_store
from tests.processes import started


def test_one_of_many_threads_builds(cache):
    kept = open_store(cache)
    inputs = make_key_inputs()
    start = threading.Barrier(8)

    def builds() -> bool:
        start.wait()
        with kept.building(inputs):
            if kept.find(inputs) is None:
                kept.add(inputs, make_object(), observed.record((), ()))
                return True
        return False

    assert sum(at_once(*[builds] * 8)) == 1


def waits_for_a_flight(thread: threading.Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    return (
        frame is not None and frame.f_code.co_name == "held_by_thread" and "most" in frame.f_locals
    )


@pytest.mark.parametrize(
    "error", [CompileError("no"), CompilerCrashed("gone"), KeyboardInterrupt()], ids=type
)
def test_after_a_build_that_failed_the_next_thread_tries(cache, error):
    kept = open_store(cache)
    inside, tries, seen = threading.Event(), [], []

    def request_it() -> None:
        try:
            with kept.building(make_key_inputs()):
                tries.append(1)
                if len(tries) == 1:
                    inside.set()
                    while not any(map(waits_for_a_flight, threads)):
                        time.sleep(0.001)
                raise error
        except BaseException as caught:
            seen.append(caught)

    threads = [threading.Thread(target=request_it) for _ in range(2)]
    threads[0].start()
    inside.wait()
    threads[1].start()
    for thread in threads:
        thread.join()
    assert len(tries) == 2
    assert [type(caught) for caught in seen] == [type(error)] * 2


def test_an_interrupt_at_any_moment_leaves_no_build_locked(cache):
    kept = open_store(cache)

    def build() -> float | None:
        with kept.building(make_key_inputs(), timeout=60.0) as left:
            return left

    build()  # afterwards locks are known to work there
    with ThreadPoolExecutor() as another:
        for number, interrupt in enumerate(interrupted(build, store, locks, contextlib)):
            assert build(), f"moment {number}"  # though the traceback keeps the interrupted frames
            interrupt.with_traceback(None)
            assert another.submit(build).result(), f"moment {number}"
    assert number > 50


HOLDER = """
import sys, os
from rtcompile.store import locks
with locks.machine_wide(sys.argv[1]) as held:
    if "fork" in sys.argv and not os.fork():
        sys.stdin.read()
        os._exit(0)
    print(held, flush=True)
    sys.stdin.read()
"""


def holder(path: Path, *, fork: bool = False) -> subprocess.Popen[str]:
    process = started(sys.executable, "-c", HOLDER, path, "fork" if fork else "")
    assert process.stdout.readline() == "True\n"
    return process


def test_a_process_waits_for_another_until_its_timeout(tmp_path):
    with holder(tmp_path / "lock") as other:
        with locks.machine_wide(str(tmp_path / "lock"), timeout=0.0) as held:
            assert not held
        other.communicate()
    with locks.machine_wide(str(tmp_path / "lock"), timeout=0.0) as held:
        assert held


def test_a_forked_child_does_not_keep_a_killed_holder_s_lock(tmp_path):
    with holder(tmp_path / "lock", fork=True) as other:
        other.kill()
        os.waitpid(other.pid, 0)
        other.returncode = -9
        with locks.machine_wide(str(tmp_path / "lock"), timeout=10.0) as held:
            assert held


def test_a_lock_is_a_file_named_for_the_beginning_of_its_key(cache):
    inputs = make_key_inputs()
    with open_store(cache).building(inputs):
        assert inputs.lookup_key[:3] in os.listdir(cache / "locks")
        with open_store(cache).building(inputs, waits=False) as left:
            assert left == 0.0


def test_a_forked_child_has_a_store_of_its_own(cache):
    """A thread of the parent may hold the store's locks; the child has no such thread to release them."""
    settings = Settings(cache_dir=str(cache))
    kept = Store.open(settings)
    with kept._guard, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # instead of waiting for ever
            try:
                add(Store.open(settings))
                os._exit(0 if Store.open(settings).find(make_key_inputs()) else 1)
            except BaseException:
                os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
