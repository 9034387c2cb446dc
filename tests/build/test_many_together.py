"""Tests of batches that share workers: each build gives the same result as a single build."""

import os
import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import rtcompile
from rtcompile.build import planned
from rtcompile.build.many import compile_many, submit_many
from rtcompile.errors import CompileError, CompilerCrashed, JitDisabled
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.settings import Settings
from rtcompile.store.store import Store
from rtcompile.workers import pool
from tests.jobs import children, until

pytestmark = pytest.mark.needs_compiler

MISTAKE = "mistake;"
CRASH = "template <class T> struct B { friend bool operator==() = default; };"


def request(source: str, **changes: Any) -> CompileRequest:
    return CompileRequest(source, arch="sm_90", **changes)


def kernel(number: int) -> CompileRequest:
    return request(f'extern "C" __global__ void k(float* x) {{ *x += {number}; }}')


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let NVRTC have run once in this process, and forbid the fallback to NVCC."""
    monkeypatch.setenv("RTCOMPILE_FALLBACK", "never")
    rtcompile.compile("__global__ void first() {}", arch="sm_90")


def outcomes(*requests: CompileRequest) -> list[Any]:
    return compile_many(requests, progress=False, errors="return")


def test_a_batch_gives_the_same_code_as_single_builds(together):
    wanted = [kernel(number).replace(name=f"k{number}.cu") for number in range(6)]
    wanted += [
        request(
            "namespace { __device__ int hidden; }"
            "template <int N> __global__ void k(const char** file) "
            f"{{ hidden = {number}; *file = __FILE__; }}",
            name_expressions=("k<1>", f"k<{number}>"),
            name=f"sub{number}/k.cu",
        )
        for number in range(4)
    ]
    wanted += [
        request(
            "struct P { int a[20]; }; extern __device__ float elsewhere;"
            "__global__ void k(const __grid_constant__ P p, float* x) "
            f"{{ *x = p.a[threadIdx.x] + elsewhere + {number}; }}",
            options=options,
            target=target,
            name=f"p{number}.cu",
        )
        for number, (options, target) in enumerate([((), "cubin"), (("-rdc=true",), "ptx")])
    ]
    wanted.append(kernel(9).replace(options=("-dlto",), name="linked.cu"))
    built = outcomes(*wanted)
    separate = [
        rtcompile.compile(
            one.source,
            arch="sm_90",
            name=one.name,
            name_expressions=one.name_expressions,
            options=one.options,
            target=one.target,
            recompile=True,
        )
        for one in wanted
    ]
    assert [one.code for one in built] == [one.code for one in separate]
    assert [one.lowered_names for one in built] == [one.lowered_names for one in separate]
    assert all(
        one.build.why.startswith("no build of this source with these options") for one in built
    )
    assert all(one.build.hit == "memory" for one in outcomes(*wanted))


TWICE = 'extern "C" __global__ void k(int* x, int* y) { x[0] = y[0]; x[1] = y[0]; }'


@pytest.mark.parametrize("options", [("--restrict",), ("-Xptxas=-O0",)])
def test_options_that_nvrtc_does_not_forget_get_their_own_process(together, options):
    separate = request(TWICE)
    before = rtcompile.compile(separate.source, arch="sm_90")
    outcomes(*(request(f"{TWICE} // {n}", options=options) for n in range(12)))
    rtcompile.compile(separate.source, arch="sm_90", options=options)
    after = rtcompile.compile(separate.source, arch="sm_90", recompile=True)
    assert after.code == before.code


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        pytest.param(MISTAKE, CompileError, id="failure"),
        pytest.param(CRASH, CompilerCrashed, id="crash"),
    ],
)
@pytest.mark.parametrize("at", [0, 2, 5])
def test_a_failing_build_does_not_affect_the_others(together, bad, error, at):
    wanted = [kernel(number) for number in range(6)]
    wanted[at] = request(bad)
    built = outcomes(*(one.replace(options=("-std=c++20",)) for one in wanted))
    assert isinstance(built[at], error)
    assert all(isinstance(one, ObjectCode) for one in built[:at] + built[at + 1 :])


def test_a_warning_is_in_the_log_of_its_build(together):
    warned = request("__global__ void k() { int unused; }")
    built = outcomes(kernel(1), warned, kernel(2))
    assert ["never referenced" in one.build.log for one in built] == [False, True, False]


def test_a_batch_waits_for_a_build_of_another_process(together):
    wanted = [kernel(number) for number in range(6)]
    settings = Settings.from_environ()
    other_store = Store(settings.cache_dir, on_disk=True, size=1 << 30)
    with ExitStack() as building:
        building.enter_context(other_store.building(planned.plan(wanted[2], settings).key_inputs))
        futures = submit_many(wanted)
        assert all(future.result(60) for future in futures[:2] + futures[3:])
        assert not futures[2].done()
        building.close()
        assert futures[2].result(60).build.hit is None


def test_a_remembered_failure_is_not_compiled_again(together):
    wanted = [kernel(0), request(MISTAKE), kernel(1)]
    outcomes(*wanted)
    failure, code = outcomes(request(MISTAKE), kernel(3))
    assert isinstance(failure, CompileError)
    assert failure.cached
    assert code.build.hit is None


def test_a_batch_builds_nothing_if_compiling_is_forbidden(together, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    assert all(isinstance(one, JitDisabled) for one in outcomes(kernel(1), kernel(2)))


def test_a_result_that_cannot_be_kept_is_reported(together, monkeypatch):
    def refuse(*_: object) -> bool:
        raise ValueError("no")

    monkeypatch.setattr(Store, "add", refuse)
    printed = [future.exception(60) for future in submit_many([kernel(1), kernel(2)])]
    assert [type(error) for error in printed] == [ValueError, ValueError]


# --- consecutive builds with the same headers in one worker --------------------------


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the worker of each build, in order, with one compiler at a time."""
    pids: list[int] = []
    only = pool.Pool(1)

    def run(*given: Any) -> Any:
        reply = only.run(*given)
        pids.append(reply.value["pid"] if isinstance(reply, pool.JobResult) else 0)
        return reply

    monkeypatch.setattr(pool, "run", run)
    monkeypatch.setattr(pool, "slots", lambda: 1)
    return pids


def reading(folder: Path, number: int, more: str = "") -> CompileRequest:
    source = f'#include "n.h"\n__global__ void k(int* p) {{ *p = N + {number}; {more} }}'
    return request(source, options=(f"-I{folder}",))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rtcompile.compile("__global__ void first() {}", arch="sm_90")
    (tmp_path / "n.h").write_text("#define N 1\n")
    return tmp_path


def test_a_batch_that_reads_the_same_headers_keeps_its_worker(folder, workers):
    wanted = [reading(folder, number) for number in range(3)]
    built = compile_many(wanted, progress=False, pch=False)
    assert len(workers) == 3
    assert len(set(workers)) == 1
    separate = [
        rtcompile.compile(
            one.source, options=one.options, arch="sm_90", recompile=True, pch=False, timeout=600
        )
        for one in wanted
    ]
    assert len(set(workers)) == 4
    assert [one.code for one in built] == [one.code for one in separate]
    assert all(len(one.build.headers) == 1 for one in built)


@pytest.mark.parametrize("header", ["n.h", "first/n.h"], ids=["edited", "shadowed"])
def test_a_reused_worker_reads_an_edited_and_a_new_header(folder, workers, header):
    (folder / "first").mkdir()
    wanted = reading(folder, 5)
    options = (f"-I{folder}/first", *wanted.options)
    for value in (1, 2):
        code = rtcompile.compile(wanted.source, options=options, arch="sm_90", target="ptx")
        assert f"{5 + value};" in code.code.decode()
        (folder / header).write_text("#define N 2 // another size\n")
    assert workers[0] == workers[1]


def test_a_mistake_in_a_batch_is_reported_once_and_ends_its_worker(folder, workers):
    wanted = [reading(folder, number, "mistake" if number == 1 else "") for number in range(4)]
    built = [outcomes(one)[0] for one in wanted]
    assert [isinstance(one, CompileError) for one in built] == [number == 1 for number in range(4)]
    # Between the two and the last two are workers of the changes that the hint might name.
    assert workers[0] == workers[1] not in workers[2:]
    assert workers[-2] == workers[-1]


def test_a_worker_that_uses_much_memory_is_not_reused(workers):
    pytest.importorskip("cutlass_library")
    for source in ("__global__ void k() {}", "#include <cute/tensor.hpp>\n"):
        rtcompile.compile(source, arch="sm_90", pch=False)
    assert workers[-1] == workers[-2]
    until(lambda: not Path(f"/proc/{workers[-1]}").exists())
    rtcompile.compile("__global__ void next() {}", arch="sm_90")


def test_a_killed_zygote_costs_no_build(together):
    futures = submit_many(map(kernel, range(30)))
    futures[0].result(60)
    # All are listed before one is killed, since a new zygote takes its place at once.
    for pid in children(os.getpid()):
        with suppress(OSError):  # the process has ended meanwhile
            os.kill(pid, signal.SIGKILL)
    assert all(isinstance(future.result(60), ObjectCode) for future in futures)
