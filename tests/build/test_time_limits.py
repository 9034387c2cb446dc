"""`timeout=` covers the whole call: no function reads long texts fully, and too large arguments are rejected."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import rtcompile
from rtcompile import CompileRequest, RawKernel, RawModule
from rtcompile.build import plan
from rtcompile.compilers import nvrtc
from rtcompile.errors import CompileTimeout
from rtcompile.messages import diagnostics
from rtcompile.request import cxx
from rtcompile.request.units import Limits
from rtcompile.workers import pool
from tests.jobs import Pool
from tests.tables import from_table

KERNEL = "__global__ void k(int* p) { *p = 1; }\n"
LINE = "__device__ int f%d() { return '\"'; } // it's /* one\n"
LONG = "".join(LINE % n for n in range(6000))
assert len(LONG) > cxx.MOST_READ


# --- how much of a long text is read ------------------------------------------------------------------


@pytest.fixture
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a long text is read character by character."""
    original = cxx.Text.__init__

    def init(self: cxx.Text, source: str, **more: Any) -> None:
        assert len(source) <= cxx.MOST_READ, "a long text is read"
        original(self, source, **more)

    monkeypatch.setattr(cxx.Text, "__init__", init)


@from_table
def test_a_long_text_is_searched_for_words(nothing_is_read, text, clock, own_path):
    assert cxx.scan(f"{LONG}{text}\n") == (clock, own_path)


def test_a_long_text_counts_as_including_and_needing_everything(nothing_is_read):
    assert not nvrtc.needs_no_declarations(LONG, (), "cubin")
    assert not cxx.reads_no_file(LONG, ())
    assert cxx.split_prefix(f"#include <cuda_fp16.h>\n{LONG}")[0] == ""


@pytest.mark.needs_compiler
def test_an_error_in_a_long_text_is_explained_from_the_log_alone(nothing_is_read):
    with pytest.raises(rtcompile.CompileError, match='identifier "nowhere" is undefined') as e:
        rtcompile.compile(f"{LONG}int x = nowhere;\n", arch="sm_80")
    assert "int x = nowhere" in str(e.value)


# --- logs -----------------------------------------------------------------------------------------


def test_a_log_is_read_at_both_ends():
    middle = "".join(f"k.cu({n}): error: {'x' * 5000}{n}\n\n" for n in range(600))
    log = f"k.cu(1): warning: at the beginning\n\n{middle}k.cu(3): warning: at the end\n"
    found = diagnostics.parse(log)
    warnings = [each.message for each in found if each.severity == "warning"]
    assert warnings == ["at the beginning", "at the end"]
    assert 300 < len(found) < 500


@pytest.mark.parametrize("severity", ["error", "warning"])
def test_the_first_thousand_of_a_kind_are_kept(severity):
    log = "".join(f"k.cu({n}): {severity}: number {n}\n\n" for n in range(1, 3000))
    found = [each for each in diagnostics.parse(log) if each.severity == severity]
    assert [each.line for each in found] == [*range(1, 1001)]


# --- the clock ------------------------------------------------------------------------------------


def runs(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """Return a list of the seconds that each job of a worker is given."""
    given: list[float | None] = []
    original = pool._send_job

    def send(zygote: Any, job: pool.Job, limits: Limits, *rest: Any) -> None:
        if job.function.rpartition(":")[2] in ("compile_unit", "link", "run"):
            given.append(limits.after_waiting(0.0))
        original(zygote, job, limits, *rest)

    monkeypatch.setattr(pool, "_send_job", send)
    return given


def slow(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def slowed(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds)
        return function(*args, **kwargs)

    return slowed


DOORS: dict[str, Callable[..., Any]] = {
    "compile": lambda **more: rtcompile.compile(KERNEL, arch="sm_80", **more),
    "RawModule": lambda **more: RawModule(code=KERNEL, arch="sm_80", **more).object_code,
    "RawKernel": lambda **more: RawKernel(KERNEL, "_Z1kPi", arch="sm_80", **more).object_code,
    "compile_many": lambda **more: rtcompile.compile_many(
        [CompileRequest(KERNEL, arch="sm_80")], progress=False, **more
    ),
    "link": lambda **more: rtcompile.compile(
        KERNEL, arch="sm_80", link=["__device__ int f;", "__device__ int g;"], **more
    ),
    "headers": lambda **more: rtcompile.compile(
        f'#include "a.h"\n{KERNEL}', arch="sm_80", headers={"a.h": "\n"}, **more
    ),
    "nvcc": lambda **more: rtcompile.compile(
        KERNEL, arch="sm_80", backend="nvcc", name_expressions=["k"], **more
    ),
}


@pytest.mark.some(2)
@pytest.mark.needs_compiler
@pytest.mark.parametrize("door", DOORS)
def test_each_compiler_run_gets_the_remaining_time(monkeypatch, door):
    given = runs(monkeypatch)
    monkeypatch.setattr(plan, "own_directories", slow(plan.own_directories, 0.3))
    DOORS[door](timeout=300)
    seconds = [each for each in given if each is not None]
    assert seconds, given
    assert len(seconds) == len(given)
    assert all(each <= 300 - 0.3 for each in seconds)
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.some(2)
@pytest.mark.needs_compiler
@pytest.mark.parametrize("door", [door for door in DOORS if door != "compile_many"])
def test_no_compiler_is_started_after_the_time_limit(monkeypatch, door):
    rtcompile.compile("__global__ void first() {}", arch="sm_80")  # queries the compiler's build
    given = runs(monkeypatch)
    monkeypatch.setattr(plan, "own_directories", slow(plan.own_directories, 0.3))
    with pytest.raises(CompileTimeout, match=r"time limit of 0\.2 s: reading its source"):
        DOORS[door](timeout=0.2)
    assert given == []


@pytest.mark.needs_compiler
def test_waiting_for_a_slot_does_not_count(monkeypatch):
    rtcompile.compile(KERNEL, arch="sm_80")  # queries the compiler's build, which takes a slot too
    given = runs(monkeypatch)
    one = Pool(jobs=1)
    monkeypatch.setattr(pool, "_pool", one)
    taker = object()
    one._take_slot(taker, pool.Cancellation())
    take, waited, sent = one._take_slot, [], []

    def take_later(*other: Any) -> int:
        began = time.monotonic()
        threading.Timer(1.0, lambda: (one._slots.pop(taker), one._wake())).start()
        slot = take(*other)
        waited.append(time.monotonic() - began)
        return slot

    monkeypatch.setattr(one, "_take_slot", take_later)
    send = pool._send_job
    monkeypatch.setattr(pool, "_send_job", lambda *job: (send(*job), sent.append(time.monotonic())))
    began = time.monotonic()
    rtcompile.compile(f"{KERNEL}// waits", arch="sm_80", timeout=100)
    one.close()
    (seconds,) = given
    assert seconds is not None
    assert sum(waited) >= 1.0
    # The two clocks may differ by a tenth of a second; the time of planning does not matter.
    assert seconds > 100 - (sent[0] - began) + sum(waited) - 0.1
