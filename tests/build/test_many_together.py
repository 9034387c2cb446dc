"""Builds of a batch that share workers: each gets what it would get alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import CancelledError
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
from tests.jobs import until

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
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that has run, and only this one."""
    monkeypatch.setenv("RTCOMPILE_FALLBACK", "never")
    rtcompile.compile("__global__ void first() {}", arch="sm_90")


def outcomes(*requests: CompileRequest) -> list[Any]:
    return compile_many(requests, progress=False, errors="return")


def test_what_is_built_together_is_what_is_built_alone(together: None) -> None:
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
        one.build.why.startswith("no build of this source with these options") for one in built
    )
    assert all(one.build.hit == "memory" for one in outcomes(*wanted))


TWICE = 'extern "C" __global__ void k(int* x, int* y) { x[0] = y[0]; x[1] = y[0]; }'


@pytest.mark.parametrize("options", [("--restrict",), ("-Xptxas=-O0",)])
def test_what_nvrtc_does_not_forget_is_compiled_in_a_process_of_its_own(
    together: None, options: tuple[str, ...]
) -> None:
    alone = request(TWICE)
    before = rtcompile.compile(alone.source, arch="sm_90")
    outcomes(*(request(f"{TWICE} // {n}", options=options) for n in range(12)))
    rtcompile.compile(alone.source, arch="sm_90", options=options)
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
    together: None, bad: str, error: type[Exception], at: int
) -> None:
    wanted = [kernel(number) for number in range(6)]
    wanted[at] = request(bad)
    built = outcomes(*(one.replace(options=("-std=c++20",)) for one in wanted))
    assert isinstance(built[at], error)
    assert all(isinstance(one, ObjectCode) for one in built[:at] + built[at + 1 :])


def test_a_warning_is_in_the_log_of_its_build(together: None) -> None:
    warned = request("__global__ void k() { int unused; }")
    built = outcomes(kernel(1), warned, kernel(2))
    assert ["never referenced" in one.build.log for one in built] == [False, True, False]


def test_a_build_that_takes_long_delays_no_other(together: None, two_slots: None) -> None:
    endless, *others = submit_many([request(ENDLESS), *map(kernel, range(5))])
    assert all(future.result(60) for future in others)
    assert endless.cancel()


def test_one_that_is_cancelled_takes_no_other_with_it(together: None) -> None:
    endless, *others = submit_many([request(ENDLESS), *map(kernel, range(5))])
    assert others[0].result(60)
    assert endless.cancel()
    assert all(future.result(60) for future in others)
    with pytest.raises(CancelledError):
        endless.result()


def test_what_another_process_builds_is_waited_for(together: None) -> None:
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


def test_a_remembered_failure_is_not_compiled_again(together: None) -> None:
    wanted = [kernel(0), request(MISTAKE), kernel(1)]
    outcomes(*wanted)
    refused, code = outcomes(request(MISTAKE), kernel(3))
    assert isinstance(refused, CompileError)
    assert refused.cached
    assert code.build.hit is None


def test_nothing_is_built_where_nothing_may_be(
    together: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RTCOMPILE_JIT", "0")
    assert all(isinstance(one, JitDisabled) for one in outcomes(kernel(1), kernel(2)))


def test_a_result_that_cannot_be_kept_is_reported(
    together: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise ValueError("no")

    monkeypatch.setattr(Store, "add", refuse)
    printed = [future.exception(60) for future in submit_many([kernel(1), kernel(2)])]
    assert [type(error) for error in printed] == [ValueError, ValueError]


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
    until(lambda: not is_there(workers[-1]))
    rtcompile.compile("__global__ void next() {}", arch="sm_90")


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_a_killed_zygote_costs_no_build(together: None) -> None:
    futures = submit_many(map(kernel, range(30)))
    futures[0].result(60)
    children = []  # all are listed before one is killed, since a new zygote takes its place at once
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended meanwhile
            children += listed.read_text().split()
    for pid in children:
        with suppress(OSError):  # the process has ended meanwhile
            os.kill(int(pid), signal.SIGKILL)
    assert all(isinstance(future.result(60), ObjectCode) for future in futures)


def test_where_processes_are_few_every_build_is_made(together: None) -> None:
    script = """
        import resource, sys
        hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
        from rtcompile.workers.zygote import _ROOMY
        resource.setrlimit(resource.RLIMIT_NPROC, (_ROOMY - 1, hard))
        import rtcompile
        from tests.build.test_many_together import kernel
        codes = rtcompile.compile_many([kernel(number) for number in range(12)], progress=False)
        print(len({code.code for code in codes}))
        """
    root = Path(__file__).parents[2]
    printed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], cwd=root, capture_output=True, text=True
    )
    assert (printed.stdout, printed.returncode) == ("12\n", 0), printed.stderr
