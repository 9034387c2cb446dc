"""Tests of batches: results in order, an error per item, cancellation at any time."""

import os
import pickle
import threading
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

import rtcompile
from rtcompile import cubin
from rtcompile.build.many import compile_many, submit_many
from rtcompile.errors import BatchError, CompileError, CompileTimeout, InvalidRequest
from rtcompile.lookup import environment
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.workers import pool as workers
from tests import jobs
from tests.jobs import children, eventually
from tests.processes import python
from tests.tables import from_table

pytestmark = pytest.mark.needs_compiler

TEMPLATE = CompileRequest("template <int N> __global__ void k(int* p) { *p = N; }", arch="sm_90")
KERNEL = TEMPLATE.replace(name_expressions=("k<0>",))
WRONG = TEMPLATE.replace(source="mistake;")
ENDLESS = TEMPLATE.replace(source=jobs.ENDLESS)


def variants(count: int) -> list[CompileRequest]:
    return [TEMPLATE.replace(name_expressions=(f"k<{i}>",)) for i in range(count)]


def kernels(code: ObjectCode) -> list[str]:
    return cubin.kernel_symbols(code.code)


def test_a_single_hit_is_found_without_a_thread(monkeypatch):
    built = compile_many([KERNEL], progress=False)
    started: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", started.append)
    (future,) = submit_many([KERNEL])
    assert future.done()
    assert future.result().code == built[0].code
    assert not started


@pytest.mark.parametrize("threads", [0, 1, 5])
def test_a_batch_works_with_fewer_threads_if_no_more_can_start(monkeypatch, threads):
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


def test_one_request_twice_is_built_once():
    hits = [code.build.hit for code in compile_many([KERNEL] * 4, progress=False)]
    assert hits.count(None) == 1


def test_errors_are_collected_and_the_others_built():
    with pytest.raises(
        BatchError,
        match=r"2 of 4 builds failed:\n\[1\] kernel.cu for sm_90: kernel.cu:1:1: error: this declaration",
    ) as caught:
        compile_many([KERNEL, WRONG, KERNEL, WRONG.replace(name="b.cu")], progress=False)
    assert sorted(caught.value.errors) == [1, 3]
    assert all(isinstance(error, CompileError) for error in caught.value.errors.values())
    assert [result is None for result in caught.value.results] == [False, True, False, True]


def test_a_batch_error_survives_pickling():
    before = BatchError({1: CompileError("wrong")}, [None, None], {1: "kernel.cu (k<1>)"})
    error = pickle.loads(pickle.dumps(before))
    assert str(error) == "1 of 2 builds failed:\n[1] kernel.cu (k<1>): wrong"
    assert error.names == {1: "kernel.cu (k<1>)"}


def test_arguments_apply_to_every_build():
    (outcome,) = compile_many([ENDLESS], timeout=0.3, progress=False, errors="return")
    assert isinstance(outcome, CompileTimeout)


@from_table
def test_an_argument_or_item_of_a_wrong_type_is_reported_before_anything_runs(arguments, message):
    with pytest.raises(InvalidRequest, match=message):
        compile_many(**arguments)


def test_an_empty_batch_returns_nothing():
    assert compile_many([], progress=True) == []


def test_an_endless_build_delays_no_other_and_its_cancellation_wakes_only_its_waiters(
    pool, monkeypatch
):
    monkeypatch.setattr(workers, "_pool", pool)  # on any machine two slots, one for another build
    endless, quick, *others = submit_many([ENDLESS, *variants(5)])
    assert len(kernels(quick.result(60))) == 1
    assert endless.cancel()
    assert endless.cancel()
    assert all(future.result(60) for future in others)
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
    return [worker for zygote in children(pid) for worker in children(zygote)]


def test_ctrl_c_is_handled_at_any_moment_and_leaves_nothing(tmp_path):
    script = """
        import os, signal, threading, time
        from tests.build.test_many import *
        signal.signal(signal.SIGINT, signal.default_int_handler)
        compile_many(variants(1), progress=False)  # imports, and the first worker
        slowest = 0.0
        endless = [ENDLESS, ENDLESS.replace(name="b.cu"), *variants(4)]
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
                    compile_many(endless, progress=False, timeout=100)
            except KeyboardInterrupt:
                heard = time.monotonic()
            sender.join()
            slowest = max(slowest, heard - sent[0])
            assert workers_of(os.getpid()) == []
        assert len(compile_many(variants(5), progress=False)) == 5
        print(slowest)
        """
    environ = {"TMPDIR": tmp_path, "RTCOMPILE_JOBS": "2"}
    done = python(script, cwd=Path(__file__).parents[2], timeout=120, environ=environ)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 60.0  # well before the time limit
    assert list(tmp_path.glob("rtcompile-*")) == []


def test_a_progress_callable_is_called_for_each_build():
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


def test_plain_lines_are_printed_without_a_terminal(capsys):
    compile_many(variants(1), progress=False)
    compile_many([*variants(2), WRONG], progress=True, errors="return")
    assert "rtcompile: 3 of 3 compiled (1 cached, 1 failed) in " in capsys.readouterr().err


def test_a_hit_before_a_batchs_first_miss_counts_once():
    found = [KERNEL.replace(options=(f"-DHIT={n}",)) for n in range(3)]
    missing = KERNEL.replace(options=("-DMISS",))
    compile_many(found, progress=False)
    environment.forget()
    before = rtcompile.cache.info().hits
    compile_many([*found, missing], progress=False)
    assert rtcompile.cache.info().hits == before + 3
    compile_many([*found, missing], progress=False)
    assert rtcompile.cache.info().hits == before + 7
