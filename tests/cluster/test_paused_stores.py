"""Tests of stores that respond late or never: they are paused if they cost more time than they save.

No build fails. A test decides when its store responds, and sets the clock, so the result does
not depend on how busy the machine is.
"""

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("zstandard")

from rtcompile.errors import RtcompileWarning
from rtcompile.extras.cluster import level as module
from rtcompile.extras.cluster import stores as of_process
from rtcompile.extras.cluster.entries import UNSIGNED, BadEntryError, RemoteSettings, StoreError
from rtcompile.extras.cluster.level import Level
from rtcompile.extras.cluster.stores import Lease, Stores

LONG = 60.0  # nothing here takes so long


class Scripted:
    """A store whose methods are functions of the test; `calls` lists their names in order."""

    name, limits_time = "scripted://", False

    def __init__(self, **acts: Callable[..., object]) -> None:
        self._acts = acts
        self.calls: list[str] = []

    def __getattr__(self, act: str) -> Callable[..., Any]:
        def call(*given: object, **_: object) -> object:
            self.calls.append(act)
            return self._acts.get(act, lambda *_: None)(*given)

        return call


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def stores_with(**acts: Callable[..., object]) -> tuple[Stores, Level, Scripted]:
    stores = Stores(RemoteSettings(("file:///none",)))
    scripted = Scripted(**acts)
    stores.levels[0] = Level(scripted, [UNSIGNED], Clock())  # type: ignore[arg-type]
    return stores, stores.levels[0], scripted


def fails_late(seconds: float) -> Callable[..., None]:
    def fail(*_: object) -> None:
        time.sleep(seconds)
        raise StoreError("it failed")

    return fail


@pytest.fixture
def silence() -> Iterator[Callable[..., bool]]:
    """A method that does not return until the test is over."""
    over = threading.Event()
    yield lambda *_: over.wait(LONG)
    over.set()


# --- costs and savings ---


def fleet_of(
    latencies: list[float], *, compiled: float = 0.03, there: bool = True
) -> tuple[int, Level]:
    """Return how many kernels a process fetches with these latencies, and the store; it compiles the others."""
    clock = Clock()

    def get(_: str) -> bytes:
        clock.now += latency
        return b"code"

    queried, fetched = Level(Scripted(get=get), [UNSIGNED], clock), 0  # type: ignore[arg-type]
    for latency in latencies:
        if queried.send(lambda: queried.store.get("manifest/k")) is not None and there:
            fetched += 1
            queried.hit(compiled * 1e3, latency)
        else:
            queried.miss()
            clock.now += compiled
            queried.built(compiled * 1e3)
    return fetched, queried


@pytest.mark.parametrize("milliseconds", [1, 5, 25])
@pytest.mark.parametrize("tail", [0, 2, 5, 10])
def test_the_entries_of_a_store_that_saves_time_are_fetched(milliseconds, tail):
    slow = [tail and n % (100 // tail) == 0 for n in range(200)]
    latencies = [0.2 if each else milliseconds / 1e3 for each in slow]
    assert fleet_of(latencies, compiled=0.05)[0] == 200


def test_a_large_kernel_is_fetched_from_a_slow_store():
    assert fleet_of([0.5] * 200, compiled=20.0)[0] == 200


@pytest.mark.parametrize("there", [False, True], ids=["empty", "with all entries"])
def test_a_store_that_costs_more_than_it_saves_is_paused_with_one_warning(there):
    with pytest.warns(
        RtcompileWarning, match=r"paused for 1 s: its replies cost .* s and saved"
    ) as warned:
        _, queried = fleet_of([0.5] * 500, compiled=0.018, there=there)
    assert len(warned) == 1
    counts = queried.counts
    assert counts["seconds_waited"] <= 1.5 + counts["seconds_saved"] + 1.0 * counts["pauses"]
    assert 2 <= counts["pauses"] < 6


def join(queried: Level) -> None:
    """Wait for the background thread that tries a silent store."""
    if queried._probe is not None:
        queried._probe.join()


# --- a store ---


def test_waiting_for_a_processor_does_not_make_a_store_seem_slow(monkeypatch):
    """Each tick of the waiting thread is late; the store responds after five ticks."""
    replied = threading.Event()
    wait, ticks = threading.Event.wait, []

    def late_wait(self: threading.Event, timeout: float | None = None) -> bool:
        if timeout != module._TICK_SECONDS:
            return wait(self, timeout)
        ticks.append(timeout)
        if len(ticks) == 5:
            replied.set()
            return wait(self, LONG)
        time.sleep(0.1)
        return False

    _, queried, _ = stores_with(get=lambda _: replied.wait(LONG) and None)
    monkeypatch.setattr(module, "FIRST_SECONDS", 0.25)  # five ticks are half of it
    monkeypatch.setattr(threading.Event, "wait", late_wait)
    assert queried.get("object", "k") is None
    assert (queried.counts["pauses"], queried.counts["failures"]) == (0, 0)


def test_a_store_that_stops_responding_costs_one_wait_and_is_used_again_later(monkeypatch, silence):
    """No build waits for the probes after 1, 2, 4, … seconds, at most a minute."""
    _, queried, scripted = stores_with(get=lambda _: None)
    clock = queried._clock
    queried.get("object", "k")
    scripted._acts["get"] = silence
    monkeypatch.setattr(module, "REPLY_SECONDS", 0.1)
    monkeypatch.setattr(module, "FIRST_SECONDS", 0.1)
    begin = time.monotonic()
    with pytest.warns(RtcompileWarning, match=r"paused for 1 s: no reply in 0\.1 s"):
        queried.get("object", "k")
    assert time.monotonic() - begin < 30.0
    lost = queried.counts["seconds_waited"]
    probed_at = []
    for second in range(1, 200):
        clock.now = 1000.0 + second
        count = len(scripted.calls)
        assert queried.get("object", "k") is None
        join(queried)
        if len(scripted.calls) > count:
            probed_at.append(second)
    assert probed_at == [1, 3, 7, 15, 31, 63, 123, 183]
    assert queried.counts["seconds_waited"] == lost
    sealed = UNSIGNED.seal("object", "k", b"again")
    scripted._acts["get"] = lambda _: sealed
    clock.now += 60.0
    queried.get("object", "k")
    join(queried)
    assert queried.get("object", "k") == b"again"
    queried.hit(1000.0, 0.1)
    scripted._acts["get"] = fails_late(0.0)
    queried.get("object", "k")
    assert queried._resumes_at == clock.now + 1, "a hit that saves time begins anew"


def raises(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("level", ["info", "DEBUG"])
def test_every_pause_is_a_line_in_the_log_and_the_first_a_warning_with_one_full_stop(
    capsys, monkeypatch, level
):
    monkeypatch.setenv("RTCOMPILE_LOG", level)
    queried = stores_with(get=raises(StoreError("it failed.")))[1]
    with pytest.warns(RtcompileWarning, match=r"it failed\. [^.]") as warned:
        queried.get("object", "k")
    queried._clock.now += 1.0
    queried.get("object", "k")
    join(queried)
    lines = [line for line in capsys.readouterr().err.splitlines() if "is paused" in line]
    assert (["1 s" in lines[0], "2 s" in lines[1]], len(warned)) == ([True, True], 1)


@pytest.mark.parametrize(
    ("get", "message", "pauses"),
    [
        *(
            pytest.param(lambda *_, reply=reply: reply, "not bytes", False, id=repr(reply))
            for reply in (5, "text", [b"bytes"], True, {"a": 1})
        ),
        pytest.param(raises(BadEntryError("it is a folder")), "is a folder", False, id="bad entry"),
        pytest.param(raises(RecursionError("recursion depth")), "recursion", True, id="too deep"),
    ],
)
def test_a_reply_that_is_no_entry_is_a_miss_and_a_bad_one_pauses_no_store(get, message, pauses):
    _, queried, scripted = stores_with(get=get)
    with pytest.warns(RtcompileWarning, match=message):
        assert [queried.get("object", key) for key in "kl"] == [None, None]
    assert queried.is_silent is pauses
    assert pauses or (scripted.calls, queried.counts["refused"]) == (["get"] * 2, 2)


def test_returning_a_lease_is_tried_only_once(monkeypatch):
    stores, queried, scripted = stores_with(
        create=lambda *_: True, put=fails_late(module.REPLY_SECONDS)
    )
    leases = [stores.lease(str(n), lambda: None) for n in range(3)]
    queried._clock = time.monotonic
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for lease in leases:
            assert isinstance(lease, Lease)
            stores.end_lease(lease, shared=False)
    assert [act for act in scripted.calls if act != "get"] == ["create"] * 3 + ["put"]
    assert len(warned) == 1


# --- what is written in the background ------------------------------------------------------------


def test_the_end_of_the_process_waits_no_longer_than_builds_would(monkeypatch, silence):
    monkeypatch.setattr(of_process, "_FLUSH_SECONDS", LONG)
    stores, _, scripted = stores_with(put=silence)
    stores.push(lambda *_: [("object", "k", b"code")])
    while not scripted.calls:
        time.sleep(0.01)

    begin = time.monotonic()
    assert not stores.flush()
    assert time.monotonic() - begin < LONG / 2


def test_background_requests_may_be_slow():
    stores, queried, scripted = stores_with(put=lambda *_: time.sleep(0.15))
    stores.push(lambda *_: [("object", str(n), b"code") for n in range(4)])
    assert stores.flush(LONG)
    assert (scripted.calls, queried.counts["written"]) == (["put"] * 4, 4)
    assert queried.counts["seconds_waited"] == 0


def test_an_ending_process_that_cannot_start_threads_queries_in_its_own(monkeypatch):
    def none(_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", none)
    assert stores_with()[1].send(lambda: "reply") == "reply"
