"""Tests of batches: results in order, an error per item, cancellation at any time."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import CancelledError
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import rtcompile
from rtcompile.build.many import compile_many, submit_many
from rtcompile.errors import BatchError, CompileError, CompileTimeout, InvalidRequest
from rtcompile.inspect import cubin
from rtcompile.lookup import environment
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.workers import pool
from tests import jobs
from tests.jobs import eventually
from tests.processes import python

pytestmark = pytest.mark.needs_compiler

TEMPLATE = CompileRequest("template <int N> __global__ void k(int* p) { *p = N; }", arch="sm_90")
KERNEL = TEMPLATE.replace(name_expressions=("k<0>",))
WRONG = TEMPLATE.replace(source="mistake;")
ENDLESS = TEMPLATE.replace(source=jobs.ENDLESS)


def variants(count: int) -> list[CompileRequest]:
    return [TEMPLATE.replace(name_expressions=(f"k<{i}>",)) for i in range(count)]


def kernels(code: ObjectCode) -> list[str]:
    return [kernel.name for kernel in cubin.read(code.code).kernels]


def test_results_are_in_the_order_of_the_requests() -> None:
    results = compile_many(variants(6), progress=False)
    assert [kernels(code) for code in results] == [[f"_Z1kILi{i}EEvPi"] for i in range(6)]


def test_built_kernels_are_in_the_cache() -> None:
    compile_many(variants(3), progress=False)
    assert all(code.build.hit for code in compile_many(variants(3), progress=False))


def test_a_single_hit_is_found_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    built = compile_many([KERNEL], progress=False)
    started: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", started.append)
    (future,) = submit_many([KERNEL])
    assert future.done()
    assert future.result().code == built[0].code
    assert not started


@pytest.mark.parametrize("threads", [0, 1, 5])
def test_a_batch_works_with_fewer_threads_if_no_more_can_start(
    monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    start, left = threading.Thread.start, [threads]

    def start_some(thread: threading.Thread) -> None:
        if thread.name.startswith("build"):
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    results = compile_many(variants(6), progress=False)
    assert [kernels(code) for code in results] == [[f"_Z1kILi{i}EEvPi"] for i in range(6)]


@pytest.mark.parametrize("most", [4, 5, 6, 7, 9])
def test_threads_leave_room_for_a_compiler_under_a_process_limit(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    start, run, free = threading.Thread.start, pool.run, []
    threads: list[
        threading.Thread
    ] = []  # only this batch's: a thread of another test may be ending

    def room() -> int:
        return most - sum(thread.is_alive() for thread in threads)

    def start_some(thread: threading.Thread) -> None:
        if thread.name.startswith(("build", "spare")):
            if room() < 1:
                raise RuntimeError("can't start new thread")
            threads.append(thread)
        start(thread)

    def note(*given: Any, **more: Any) -> Any:
        free.append(room())
        return run(*given, **more)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    monkeypatch.setattr(pool, "run", note)
    compile_many(variants(8), progress=False)
    assert min(free) >= 3  # a zygote, its child, and a program that the child may run


def test_one_request_twice_is_built_once() -> None:
    hits = [code.build.hit for code in compile_many([KERNEL] * 4, progress=False)]
    assert hits.count(None) == 1


def test_errors_are_collected_and_the_others_built() -> None:
    with pytest.raises(
        BatchError,
        match=r"2 of 4 builds failed:\n\[1\] kernel.cu for sm_90: kernel.cu:1:1: error: this declaration",
    ) as caught:
        compile_many([KERNEL, WRONG, KERNEL, WRONG.replace(name="b.cu")], progress=False)
    assert sorted(caught.value.errors) == [1, 3]
    assert all(isinstance(error, CompileError) for error in caught.value.errors.values())
    assert [result is None for result in caught.value.results] == [False, True, False, True]


def test_errors_can_be_returned_instead_of_results() -> None:
    outcomes: list[Any] = compile_many([WRONG, KERNEL], progress=False, errors="return")
    assert isinstance(outcomes[0], CompileError)
    assert isinstance(outcomes[1], ObjectCode)


def test_a_batch_error_survives_pickling() -> None:
    before = BatchError({1: CompileError("wrong")}, [None, None], {1: "kernel.cu (k<1>)"})
    error = pickle.loads(pickle.dumps(before))
    assert str(error) == "1 of 2 builds failed:\n[1] kernel.cu (k<1>): wrong"
    assert error.names == {1: "kernel.cu (k<1>)"}


def test_arguments_apply_to_every_build() -> None:
    (outcome,) = compile_many([ENDLESS], timeout=0.3, progress=False, errors="return")
    assert isinstance(outcome, CompileTimeout)


@pytest.mark.parametrize("item", ["source", None, 3])
def test_an_invalid_item_is_rejected_before_anything_runs(item: object) -> None:
    with pytest.raises(InvalidRequest, match=r"builds\[1\] is"):
        compile_many([TEMPLATE, item])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"builds": TEMPLATE}, r"builds must be a list .* write builds=\[…\]"),
        ({"builds": None}, "builds must be a list"),
        ({"builds": [], "progress": "yes"}, "progress must be True, False, None or a function"),
        ({"builds": [], "errors": None}, "errors must be one of 'raise', 'return', not None"),
        ({"builds": [], "trace": 3}, "trace must be a path, not int 3"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_an_argument_of_a_wrong_type_is_reported(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        compile_many(**arguments)


def test_an_empty_batch_returns_nothing() -> None:
    assert compile_many([], progress=True) == []


def test_modules_find_their_code_afterwards() -> None:
    pytest.importorskip("cupy")
    from rtcompile import RawKernel, RawModule

    module = RawModule(code=TEMPLATE.source, arch="sm_90", name_expressions=["k<1>"])
    kernel = RawKernel('extern "C" __global__ void f() {}', "f", arch="sm_90")
    compile_many([module, kernel], progress=False)
    assert module.build is not None
    assert kernel.build is not None
    assert (module.build.hit, kernel.build.hit) == ("memory", "memory")


def test_futures_are_awaitable() -> None:
    async def build() -> list[ObjectCode]:
        return await asyncio.gather(*map(asyncio.wrap_future, submit_many(variants(3))))

    assert [kernels(code) for code in asyncio.run(build())] == [
        [f"_Z1kILi{i}EEvPi"] for i in range(3)
    ]


@pytest.mark.usefixtures("two_slots")
def test_a_cancelled_future_wakes_its_waiters_and_the_next_build_works() -> None:
    endless, quick = submit_many([ENDLESS, *variants(1)])
    assert len(kernels(quick.result())) == 1
    assert endless.cancel()
    assert endless.cancel()
    with pytest.raises(CancelledError):
        endless.result()
    assert not quick.cancel()
    assert compile_many(variants(2), progress=False)
    assert workers_of(os.getpid()) == []


def workers_of(caller: int) -> list[int]:
    """Wait until the zygotes of a process have no child at work; return those that remain."""
    at_work: list[int] = []

    def idle() -> bool:
        at_work[:] = [pid for pid in grandchildren(caller) if not sleeps(pid)]
        return not at_work

    # A job that was on its way to the zygote has a child for a moment: what was seen once is not asked again.
    eventually(idle)
    return at_work


def sleeps(pid: int) -> bool:
    """Return whether a process waits for its next job instead of computing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
    except OSError:
        return True  # the process has ended


def grandchildren(pid: int) -> list[int]:
    found = []
    for zygote in children_of(pid):
        found += children_of(zygote)
    return found


def children_of(pid: int) -> list[int]:
    children = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended meanwhile
            children += [int(child) for child in task.read_text().split()]
    return children


def test_ctrl_c_ends_a_batch_at_once_and_leaves_nothing(tmp_path: Path) -> None:
    script = """
        import os, sys, threading
        from tests.build.test_many import *
        # A test run in the background of a shell hands down that Ctrl-C is ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        def when_both_run():
            import time
            while len(grandchildren(os.getpid())) < 2:
                time.sleep(0.005)
            print(*children_of(os.getpid()), flush=True)
        threading.Thread(target=when_both_run).start()
        try:
            compile_many([ENDLESS, ENDLESS.replace(name="b.cu"), *variants(8)], progress=False)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        assert workers_of(os.getpid()) == []
        assert len(compile_many(variants(2), progress=False)) == 2
        print("works", flush=True)
        """
    root = Path(__file__).parents[2]
    environ = {**os.environ, "TMPDIR": str(tmp_path), "RTCOMPILE_JOBS": "2"}
    program = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=root,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert program.stdout is not None
    program.stdout.readline()
    os.killpg(program.pid, signal.SIGINT)
    assert program.communicate(timeout=60)[0] == "interrupted\nworks\n"
    assert program.returncode == 0
    assert list(tmp_path.glob("rtcompile-*")) == []


def test_ctrl_c_is_handled_at_any_moment() -> None:
    script = """
        import os, threading, time
        from tests.build.test_many import *
        signal.signal(signal.SIGINT, signal.default_int_handler)
        compile_many(variants(1), progress=False)  # imports, and the first worker
        slowest = 0.0
        for attempt in range(12):
            wait = threading.Event().wait
            def interrupt(seconds=0.001 * attempt + 0.3 * (attempt % 2)):
                wait(seconds)
                if attempt % 2:
                    # Handled by this thread, it wakes no other: as if it had come to the main one
                    # just before that began to wait.
                    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
                else:
                    os.kill(os.getpid(), signal.SIGINT)
                return time.monotonic()
            sent = []
            sender = threading.Thread(target=lambda: sent.append(interrupt()))
            try:
                sender.start()
                if attempt % 4 == 3:
                    rtcompile.compile(ENDLESS.source, arch="sm_90", timeout=100)
                else:
                    compile_many([ENDLESS], progress=False, timeout=100)
            except KeyboardInterrupt:
                heard = time.monotonic()
            sender.join()
            slowest = max(slowest, heard - sent[0])
            assert workers_of(os.getpid()) == []
        print(slowest)
        """
    program = [sys.executable, "-c", textwrap.dedent(script)]
    root = Path(__file__).parents[2]
    done = subprocess.run(program, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 60.0  # well before the time limit


def test_a_progress_callable_is_called_for_each_build() -> None:
    heard: list[tuple[int, int, bool]] = []
    compile_many(
        [*variants(2), WRONG],
        progress=lambda done, total, outcome: heard.append(
            (done, total, isinstance(outcome, ObjectCode))
        ),
        errors="return",
    )
    assert [(done, total) for done, total, _ in heard] == [(1, 3), (2, 3), (3, 3)]
    assert sorted(good for _, _, good in heard) == [False, True, True]


def test_plain_lines_are_printed_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    compile_many(variants(1), progress=False)
    compile_many([*variants(2), WRONG], progress=True, errors="return")
    assert "rtcompile: 3 of 3 compiled (1 cached, 1 failed) in " in capsys.readouterr().err


def test_nothing_is_shown_by_default_without_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    compile_many(variants(1))
    assert capsys.readouterr().err == ""


def test_a_trace_shows_queue_phases_and_workers(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    compile_many(variants(3), progress=False, trace=str(path))
    events = json.loads(path.read_text())
    spans = {event["name"] for event in events if event["ph"] == "X"}
    assert {"compile_many", "queue", "compile", "front end", "optimizer", "ptxas"} <= spans
    rows = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert "worker 1" in rows
    for event in events:
        assert event["pid"] == os.getpid()
        assert event["ph"] == "M" or event["dur"] >= 0


def test_one_build_is_traced_to_its_argument(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    source = "__global__ void traced() {}"
    rtcompile.compile(source, arch="sm_90", trace=str(path))
    spans = {event["name"] for event in json.loads(path.read_text()) if event["ph"] == "X"}
    assert {"plan", "cache", "build", "front end", "headers", "store"} <= spans
    size = path.stat().st_size
    rtcompile.compile(source, arch="sm_90", options=["-G"])
    assert path.stat().st_size == size, "what was traced to there is over"


def test_processes_add_to_one_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    monkeypatch.setenv("RTCOMPILE_TRACE", str(path))
    compile_many(variants(1), progress=False)
    script = "from tests.build.test_many import *; compile_many(variants(2), progress=False)"
    python(script, cwd=Path(__file__).parents[2], check=True)
    assert len({event["pid"] for event in json.loads(path.read_text())}) == 2


def test_a_file_that_is_not_a_trace_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("dear reader")
    with pytest.warns(UserWarning, match="not an rtcompile trace"):
        compile_many([], trace=str(path))
    assert path.read_text() == "dear reader"


def test_no_more_threads_are_started_than_useful(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    original = threading.Thread.start
    monkeypatch.setattr(
        threading.Thread, "start", lambda self: (started.append(self.name), original(self))[1]
    )

    def builders() -> int:
        names = [name for name in started if name.startswith("build")]
        started.clear()
        return len(names)

    compile_many(variants(20), progress=False)
    assert builders() == min(20, 2 * pool.slots() + 2)
    assert all(code.build.hit for code in compile_many(variants(20), progress=False))
    assert builders() == 0  # the look-up needs none


def test_a_hit_before_a_batchs_first_miss_counts_once() -> None:
    found = [KERNEL.replace(options=(f"-DHIT={n}",)) for n in range(3)]
    missing = KERNEL.replace(options=("-DMISS",))
    compile_many(found, progress=False)
    environment.forget()
    before = rtcompile.cache.info().hits
    compile_many([*found, missing], progress=False)
    assert rtcompile.cache.info().hits == before + 3
    compile_many([*found, missing], progress=False)
    assert rtcompile.cache.info().hits == before + 7
