"""Tests of batches on executors: the builds run in other processes and are kept in the local cache."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

import rtcompile
from rtcompile import BatchError, CompileRequest, ExecutorError, InvalidRequest, compile_many
from rtcompile.build import ahead
from rtcompile.lookup import find as lookup
from tests import nodes
from tests.jobs import until

pytestmark = pytest.mark.needs_compiler


def request(number: int = 0, **more: object) -> CompileRequest:
    return CompileRequest(nodes.source(number), **{"arch": "sm_80", **more})  # type: ignore[arg-type]


def move(folder: str) -> None:
    os.environ["RTCOMPILE_CACHE_DIR"] = folder


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[Executor]:
    """An executor whose process has its own cache."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, context, move, (str(tmp_path / "theirs"),)) as executor:
        yield executor


def test_builds_of_an_executor_are_in_the_local_cache(executor):
    built = compile_many([request(1), request(2)], executor=executor, progress=False)
    again = compile_many([request(1), request(2)], progress=False)

    assert [code.build.hit for code in built] == [None, None]
    assert [code.build.hit for code in again] == ["disk", "disk"]
    assert [code.code for code in again] == [code.code for code in built]


def test_results_are_in_order_with_errors_at_their_positions(executor):
    builds = [request(3), CompileRequest("nothing", arch="sm_80"), request(4)]

    with pytest.raises(BatchError) as caught:
        compile_many(builds, executor=executor, progress=False)

    assert [type(error) for error in caught.value.errors.values()] == [rtcompile.CompileError]
    assert [bool(result) for result in caught.value.results] == [True, False, True]


def test_arguments_of_the_batch_apply_on_other_machines(executor):
    outcome = compile_many(
        [request(5)], executor=executor, errors="return", timeout=1e-6, progress=False
    )
    assert isinstance(outcome[0], rtcompile.CompileTimeout)


def test_a_result_that_depends_on_its_path_is_not_kept_locally(executor):
    one = [request(6, options=("-lineinfo",))]
    compile_many(one, executor=executor, progress=False)
    assert compile_many(one, progress=False)[0].build.hit is None


def test_a_module_is_sent_as_its_request(executor, monkeypatch):
    pytest.importorskip("cupy")
    monkeypatch.setenv("RTCOMPILE_AHEAD", "0")  # otherwise this process would compile it too
    module = rtcompile.RawModule(code=nodes.source(9), arch="sm_80")
    compile_many([module], executor=executor, progress=False)
    assert module.object_code.build.hit == "disk"


@pytest.mark.some(2)
@pytest.mark.parametrize("moment", ["constructed", "looked up", "queued", "compiling"])
def test_constructed_modules_are_not_compiled_locally_too(executor, monkeypatch, moment):
    pytest.importorskip("cupy")
    from rtcompile.frontends import raw_kernel

    monkeypatch.setenv("RTCOMPILE_AHEAD", "1")
    until(lambda: not raw_kernel.watching)
    monkeypatch.setattr(lookup, "builds_ahead", None)
    built, reached, goes_on = [], threading.Event(), threading.Event()
    target, name = {
        "constructed": (raw_kernel, "_look_ahead"),
        "looked up": (ahead.Ahead, "add"),
        "queued": (ahead.Ahead, "_start_threads"),
        "compiling": (ahead.Ahead, "_compiled"),
    }[moment]
    real = getattr(target, name)

    def paused(*given):
        reached.set()
        assert goes_on.wait(60)
        return None if moment == "queued" else real(*given)

    if moment != "compiling":
        monkeypatch.setattr(ahead.Ahead, "_compiled", lambda *given: built.append(given))
    monkeypatch.setattr(target, name, paused)
    modules = [rtcompile.RawModule(code=nodes.source(n), arch="sm_80") for n in (20, 21)]
    assert reached.wait(60)

    class Engine:
        def submit(self, *given):
            goes_on.set()
            until(lambda: not raw_kernel.watching)
            assert lookup.builds_ahead is None or not lookup.builds_ahead.kept
            return executor.submit(*given)

    codes = compile_many(modules, executor=Engine(), progress=False)

    assert [code.build.hit for code in codes] == [None, None]
    assert [module.object_code.build.hit for module in modules] == ["disk", "disk"]
    assert built == []


def leave(_: object) -> None:
    os._exit(3)


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(lambda executor: executor.submit(leave, 0), id="a worker that dies"),
        pytest.param(lambda executor: executor.shutdown(), id="an executor that was shut down"),
    ],
)
def test_a_failing_executor_raises_an_rtcompile_error(executor, harm):
    harm(executor)
    outcome = compile_many(
        [request(10), request(11)], executor=executor, errors="return", progress=False
    )
    assert [type(error) for error in outcome] == [ExecutorError, ExecutorError]


def test_anything_that_has_submit_is_an_executor():
    class Engine:
        def submit(self, function: Callable[..., object], *given: object) -> Future[object]:
            future: Future[object] = Future()
            future.set_result(function(*given))
            return future

    [code] = compile_many([request(12)], executor=Engine(), progress=False)
    assert code.kind == "cubin"


@pytest.mark.parametrize("given", [3, "dask", object()])
def test_an_object_without_submit_is_rejected(given):
    with pytest.raises(InvalidRequest, match="executor must have submit"):
        compile_many([request()], executor=given)
