"""Small builds of a batch that share a worker: each gets what it would get alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import rtcompile
from rtcompile.build import batch, planned
from rtcompile.build.many import compile_many, submit_many
from rtcompile.errors import CompileError, CompilerCrashed, JitDisabled
from rtcompile.lookup.find import Query
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.request import CompileRequest
from rtcompile.settings import Settings
from rtcompile.store.store import Store
from rtcompile.workers import pool

pytestmark = pytest.mark.needs_compiler

MISTAKE = "mistake;"
CRASH = "template <class T> struct B { friend bool operator==() = default; };"
# The mangled name of the parameter doubles with each typedef.
ENDLESS = (
    "typedef int (*F0)(int);\n"
    + "".join(f"typedef F{i} (*F{i + 1})(F{i}, F{i});\n" for i in range(40))
    + "__global__ void k(F40 f) {}"
)


def request(source: str, **changes: Any) -> CompileRequest:
    return CompileRequest(source, arch="sm_90", **changes)


def kernel(number: int) -> CompileRequest:
    return request(f'extern "C" __global__ void k(float* x) {{ *x += {number}; }}')


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The sources of builds that a worker was given together, which are six at a time."""
    monkeypatch.setenv("RTCOMPILE_FALLBACK", "never")
    rtcompile.compile("__global__ void first() {}", arch="sm_90")  # its compiler is known
    given: list[list[str]] = []
    compile_batch = planned.compile_batch

    def note(queries: Sequence[Query], cancellations: Sequence[Any]) -> Any:
        given.append([each.request.source for each in queries])
        return compile_batch(queries, cancellations)

    def six(self: batch.Batch) -> int:
        self._seconds = 60.0  # or a worker that waits for a processor would be called a slow one
        return 6

    monkeypatch.setattr(planned, "compile_batch", note)
    monkeypatch.setattr(batch.Batch, "most_together", six)
    return given


def outcomes(*requests: CompileRequest) -> list[Any]:
    return compile_many(requests, progress=False, errors="return")


def test_what_is_built_together_is_what_is_built_alone(together: list[list[str]]) -> None:
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
    built = outcomes(*wanted)
    assert sorted(map(len, together)) == [4, 6]  # two threads may begin with them at once
    alone = [
        rtcompile.compile(
            one.source,
            arch="sm_90",
            name=one.name,
            name_expressions=one.name_expressions,
            recompile=True,
        )
        for one in wanted
    ]
    assert [one.code for one in built] == [one.code for one in alone]
    assert [one.lowered_names for one in built] == [one.lowered_names for one in alone]
    assert all(
        one.build.why.startswith("no build of this source with these options by 1") for one in built
    )
    assert all(one.build.hit == "memory" for one in outcomes(*wanted))


def test_a_worker_does_one_chunk_after_another(
    together: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []
    parts = pool.parts

    def note(*given: Any) -> Any:
        for answer in parts(*given):
            if answer is not None:
                pids.append(answer.value["pid"])
            yield answer

    monkeypatch.setattr(pool, "parts", note)
    monkeypatch.setattr(batch, "_SLOW_FACTOR", float("inf"))  # no worker is called a slow one
    outcomes(*map(kernel, range(60)))
    assert len(pids) == 60
    assert len(set(pids)) <= pool.slots()


TWICE = 'extern "C" __global__ void k(int* x, int* y) { x[0] = y[0]; x[1] = y[0]; }'


@pytest.mark.parametrize("options", [("--restrict",), ("-Xptxas=-O0",)])
def test_what_nvrtc_does_not_forget_is_compiled_in_a_process_of_its_own(
    together: list[list[str]], options: tuple[str, ...]
) -> None:
    alone = request(TWICE)
    before = rtcompile.compile(alone.source, arch="sm_90")
    outcomes(*(request(f"{TWICE} // {n}", options=options) for n in range(12)))
    rtcompile.compile(alone.source, arch="sm_90", options=options)
    assert not any("//" in source for sources in together for source in sources)
    after = rtcompile.compile(alone.source, arch="sm_90", recompile=True)
    assert after.code == before.code


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        pytest.param(MISTAKE, CompileError, id="refused"),
        pytest.param(CRASH, CompilerCrashed, id="crash"),
    ],
)
@pytest.mark.parametrize("at", [0, 2, 5])
def test_one_that_fails_fails_alone(
    together: list[list[str]], bad: str, error: type[Exception], at: int
) -> None:
    wanted = [kernel(number) for number in range(6)]
    wanted[at] = request(bad)
    built = outcomes(*(one.replace(options=("-std=c++20",)) for one in wanted))
    assert together[0][at] == bad
    assert isinstance(built[at], error)
    assert all(isinstance(one, ObjectCode) for one in built[:at] + built[at + 1 :])


def test_a_warning_is_in_the_log_of_its_build(together: list[list[str]]) -> None:
    warned = request("__global__ void k() { int unused; }")
    built = outcomes(kernel(1), warned, kernel(2))
    assert ["never referenced" in one.build.log for one in built] == [False, True, False]


@pytest.mark.parametrize(
    ("changes", "arguments"),
    [
        pytest.param({"options": ("-lineinfo",)}, {}, id="its source is a file"),
        pytest.param({"source": "#include <cuda_fp16.h>\n"}, {}, id="it reads a file"),
        pytest.param({"options": ("-rdc=true",)}, {}, id="it is linked"),
        pytest.param({}, {"timeout": 60.0}, id="a time limit"),
        pytest.param({}, {"memory_limit": "4G"}, id="a memory limit"),
    ],
)
def test_what_needs_a_worker_of_its_own_has_one(
    together: list[list[str]], changes: dict[str, Any], arguments: dict[str, Any]
) -> None:
    wanted = [kernel(number) for number in range(2)]
    wanted = [
        one.replace(**{**changes, "source": changes.get("source", "") + one.source})
        for one in wanted
    ]
    assert all(
        isinstance(one, ObjectCode) for one in compile_many(wanted, progress=False, **arguments)
    )
    assert together == []


def test_other_options_go_to_another_worker(together: list[list[str]]) -> None:
    plain = [kernel(number) for number in range(2)]
    others = [one.replace(options=("-DN=1",)) for one in plain]
    outcomes(plain[0], *others, plain[1])
    assert together == [[one.source for one in others]]


def test_a_build_that_takes_long_delays_no_other(
    together: list[list[str]], two_slots: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch.Batch, "most_together", lambda self: 6)
    endless, *others = submit_many([request(ENDLESS), *map(kernel, range(5))])
    assert all(future.result(60) for future in others)
    assert len(together[0]) == 6
    assert endless.cancel()


def test_one_that_is_cancelled_takes_no_other_with_it(together: list[list[str]]) -> None:
    monkey = threading.Event()
    endless, *others = submit_many([request(ENDLESS), *map(kernel, range(5))])
    while not together:
        monkey.wait(0.005)
    assert endless.cancel()
    assert all(future.result(60) for future in others)
    with pytest.raises(CancelledError):
        endless.result()


def test_what_another_process_builds_is_waited_for(together: list[list[str]]) -> None:
    wanted = [kernel(number) for number in range(6)]
    settings = Settings.from_environ()
    elsewhere = Store(settings.cache_dir, on_disk=True, size=1 << 30)
    with ExitStack() as building:
        building.enter_context(elsewhere.building(planned.plan(wanted[2], settings).key_inputs))
        futures = submit_many(wanted)
        assert all(future.result(60) for future in futures[:2] + futures[3:])
        assert not futures[2].done()
        building.close()
        assert futures[2].result(60).build.hit is None


def test_a_remembered_failure_is_not_compiled_again(together: list[list[str]]) -> None:
    wanted = [kernel(0), request(MISTAKE), kernel(1)]
    outcomes(*wanted)
    before = len(together)
    refused, code = outcomes(request(MISTAKE), kernel(3))
    assert isinstance(refused, CompileError)
    assert refused.cached
    assert code.build.hit is None
    assert not any(MISTAKE in group for group in together[before:])


def test_nothing_is_built_where_nothing_may_be(
    together: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    assert all(isinstance(one, JitDisabled) for one in outcomes(kernel(1), kernel(2)))
    assert together == []


def test_a_result_that_cannot_be_kept_is_reported(
    together: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise ValueError("no")

    monkeypatch.setattr(Store, "add", refuse)
    printed = [future.exception(60) for future in submit_many([kernel(1), kernel(2)])]
    assert [type(error) for error in printed] == [ValueError, ValueError]


def test_few_go_together_where_a_build_takes_long_or_few_are_left() -> None:
    def most(seconds: float, left: int) -> int:
        made = batch.Batch([])
        made._seconds, made._unseen = seconds, range(left)
        return made.most_together()

    slots = batch.pool.slots()
    assert [most(0.0, 1000), most(0.02, 1000 * slots), most(0.2, 1000 * slots)] == [1, 7, 1]
    assert [most(0.001, 1000 * slots), most(0.001, 4 * slots), most(0.001, 0)] == [16, 2, 1]


# --- builds that read the same headers, one after another in one worker --------------------------


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process of each build, in order; one compiler at a time."""
    pids: list[int] = []
    only = pool.Pool(1)

    def run(*given: Any) -> Any:
        answer = only.run(*given)
        pids.append(answer.value["pid"] if isinstance(answer, pool.Answer) else 0)
        return answer

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


def test_a_batch_that_reads_the_same_headers_keeps_its_worker(
    folder: Path, workers: list[int]
) -> None:
    wanted = [reading(folder, number) for number in range(3)]
    built = compile_many(wanted, progress=False, pch=False)
    assert len(workers) == 3
    assert len(set(workers)) == 1
    alone = [
        rtcompile.compile(
            one.source, options=one.options, arch="sm_90", recompile=True, pch=False, timeout=600
        )
        for one in wanted
    ]
    assert len(set(workers)) == 4
    assert [one.code for one in built] == [one.code for one in alone]
    assert all(len(one.build.headers) == 1 for one in built)


def test_a_worker_that_goes_on_reads_an_edited_header(folder: Path, workers: list[int]) -> None:
    wanted = reading(folder, 5)
    for value in (1, 2):
        (folder / "n.h").write_text(f"#define N {value} // {'x' * value}\n")
        code = rtcompile.compile(wanted.source, options=wanted.options, arch="sm_90", target="ptx")
        assert f"{5 + value};" in code.code.decode()
    assert workers[0] == workers[1]


def test_a_worker_that_goes_on_finds_a_header_that_came_in_front(
    folder: Path, workers: list[int]
) -> None:
    first = folder / "first"
    first.mkdir()
    wanted = reading(folder, 5)
    for value in (1, 2):
        code = rtcompile.compile(
            wanted.source, options=(f"-I{first}", *wanted.options), arch="sm_90", target="ptx"
        )
        assert f"{5 + value};" in code.code.decode()
        (first / "n.h").write_text("#define N 2\n")
    assert workers[0] == workers[1]


def test_a_mistake_beside_good_builds_is_reported_once_and_ends_its_worker(
    folder: Path, workers: list[int]
) -> None:
    wanted = [reading(folder, number, "mistake" if number == 1 else "") for number in range(4)]
    built = [outcomes(one)[0] for one in wanted]
    assert [isinstance(one, CompileError) for one in built] == [number == 1 for number in range(4)]
    assert workers[0] == workers[1] != workers[2] == workers[3]


def test_a_worker_that_holds_much_memory_soon_ends(workers: list[int]) -> None:
    pytest.importorskip("cutlass_library")
    for source in ("__global__ void k() {}", "#include <cute/tensor.hpp>\n"):
        rtcompile.compile(source, arch="sm_90", pch=False)
    assert workers[-1] == workers[-2]
    deadline = time.monotonic() + 20
    while is_there(workers[-1]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_there(workers[-1])
    rtcompile.compile("__global__ void next() {}", arch="sm_90")


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_killed_zygote_costs_no_build(together: list[list[str]]) -> None:
    futures = submit_many(map(kernel, range(30)))
    while not together:
        time.sleep(0.001)
    for children in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread or the process has ended meanwhile
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
    assert all(isinstance(future.result(60), ObjectCode) for future in futures)


def test_where_processes_are_few_builds_share_a_worker_still(together: list[list[str]]) -> None:
    script = """
        import resource, sys
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        resource.setrlimit(resource.RLIMIT_NPROC, (1500, hard))
        import rtcompile
        from rtcompile.build import batch
        batch.Batch.most_together = lambda self: 6
        from tests.build.test_many_together import kernel
        codes = rtcompile.compile_many([kernel(number) for number in range(12)], progress=False)
        print(len({code.code for code in codes}))
        """
    root = Path(__file__).parents[2]
    printed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=root, capture_output=True, text=True
    )
    assert (printed.stdout, printed.returncode) == ("12\n", 0), printed.stderr
