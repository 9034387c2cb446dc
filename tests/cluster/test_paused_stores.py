"""Tests of stores that respond late or never: they are paused if they cost more time than they save.

No build fails. A test decides when its store responds, and sets the ledger's clock, so the result does
not depend on how busy the machine is.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("zstandard")

from rtcompile.cli.caching import pull
from rtcompile.errors import RtcompileWarning
from rtcompile.store import remote, tier
from rtcompile.store.folder import Folder
from rtcompile.store.leases import Lease
from rtcompile.store.remote import Remote
from rtcompile.store.shared import BadEntryError, RemoteSettings, StoreError
from rtcompile.store.tier import Ledger, Tier

LONG = 60.0  # nothing here takes so long


class Scripted:
    """A store whose methods are functions of the test; `calls` lists their names in order."""

    name = "scripted://"

    def __init__(self, **acts: Callable[..., object]) -> None:
        self._acts = acts
        self.calls: list[str] = []

    def __getattr__(self, act: str) -> Callable[..., Any]:
        if act == "get_many":
            raise AttributeError(act)

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


def stores_with(**acts: Callable[..., object]) -> tuple[Remote, Tier, Scripted]:
    stores = Remote(RemoteSettings(("file:///none",), unsigned=True))
    scripted = Scripted(**acts)
    stores.tiers[0] = Tier(scripted, Clock())  # type: ignore[arg-type]
    return stores, stores.tiers[0], scripted


def late(seconds: float) -> Callable[..., None]:
    return lambda *_: time.sleep(seconds)


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


# --- the ledger ---


def fleet_of(latencies: list[float], *, compiled: float = 0.03, there: bool = True) -> int:
    """Return how many kernels a process fetches with these latencies; it compiles the others."""
    clock = Clock()
    ledger, fetched = Ledger(clock), 0
    for seconds in latencies:
        if ledger.is_paused:
            clock.now += compiled
            ledger.compiled += compiled
            continue
        if ledger.balance <= 0:
            ledger.try_again()
        assert ledger.time_limit() >= min(seconds, 0.25)
        clock.now += seconds
        ledger.wait(seconds)
        if there:
            fetched += 1
            ledger.hit(compiled, seconds)
        else:
            clock.now += compiled
            ledger.compiled += compiled
            if ledger.balance <= 0:
                ledger.pause(silent=False)
    return fetched


@pytest.mark.parametrize("milliseconds", [5, 50, 120, 200])
@pytest.mark.parametrize("tail", [0, 2, 5, 10])
def test_the_entries_of_a_slow_store_are_fetched(milliseconds, tail):
    latencies = [0.2 if n % 100 < tail else milliseconds / 1e3 for n in range(200)]
    assert fleet_of(latencies) >= 190


def test_a_slow_empty_store_costs_little_more_than_compiling():
    clock = Clock()
    ledger = Ledger(clock)
    for _ in range(500):
        if not ledger.is_paused:
            if ledger.balance <= 0:
                ledger.try_again()
            clock.now += 0.24
            ledger.wait(0.24)
            if ledger.balance <= 0:
                ledger.pause(silent=False)
        clock.now += 0.03
        ledger.compiled += 0.03
    assert ledger.waited < 1.0 + 0.5 * ledger.compiled + 0.75 * ledger.pauses
    assert ledger.pauses < 6


def test_pauses_double_up_to_a_minute_and_restart_after_a_hit():
    ledger = Ledger(Clock())
    assert [ledger.pause(silent=True) for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    ledger.hit(1.0, 0.1)
    assert ledger.pause(silent=True) == 1


def test_simultaneous_waits_of_threads_count_once():
    clock = Clock()
    ledger = Ledger(clock)
    for until, waited in ((0.5, 0.4), (0.6, 0.4), (0.9, 0.4), (0.9, 0.2), (2.0, 0.05)):
        clock.now = until
        ledger.wait(waited)
    assert ledger.waited == pytest.approx(0.8 + 0.05)


# --- a store ---


def test_waiting_for_a_processor_does_not_make_a_store_seem_slow(monkeypatch):
    """Each tick of the waiting thread is late; the store responds after five ticks."""
    replied = threading.Event()
    wait, ticks = threading.Event.wait, []

    def late_wait(self: threading.Event, timeout: float | None = None) -> bool:
        if timeout != tier._TICK_SECONDS:
            return wait(self, timeout)
        ticks.append(timeout)
        if len(ticks) == 5:
            replied.set()
            return wait(self, LONG)
        time.sleep(0.1)
        return False

    stores, queried, _ = stores_with(get=lambda _: replied.wait(LONG) and None)
    monkeypatch.setattr(tier, "_FIRST_SECONDS", 0.25)  # five ticks are half of it
    monkeypatch.setattr(threading.Event, "wait", late_wait)
    assert stores.get("object", "k") is None
    assert (queried.ledger.pauses, queried.counts["failures"]) == (0, 0)


@pytest.mark.takes_seconds
def test_waiting_threads_stop_once_a_store_is_paused(monkeypatch, silence):
    for name in ("REPLY_SECONDS", "_FIRST_SECONDS"):
        monkeypatch.setattr(tier, name, LONG)
    stores, queried, scripted = stores_with(get=silence)
    waiting = [threading.Thread(target=stores.get, args=("object", str(n))) for n in range(4)]
    for thread in waiting:
        thread.start()
    while len(scripted.calls) < 4:
        time.sleep(0.01)
    scripted._acts["get"] = fails_late(0.0)
    with pytest.warns(RtcompileWarning, match="is paused") as warned:
        queried.query("get", "object/k")
    for thread in waiting:
        thread.join(LONG / 2)
        assert not thread.is_alive()
    assert len(warned) == 1


def test_a_store_that_stops_responding_costs_one_wait_and_is_used_again_later(monkeypatch, silence):
    """No build waits for the probes after 1, 2, 4, … seconds."""
    stores, queried, scripted = stores_with(get=lambda _: None)
    clock = queried._clock
    stores.get("object", "k")
    scripted._acts["get"] = silence
    monkeypatch.setattr(tier, "REPLY_SECONDS", 0.1)
    with pytest.warns(RtcompileWarning, match=r"paused for 1 s: no reply in 0\.25 s"):
        stores.get("object", "k")
    lost = queried.ledger.waited
    assert lost < 1.0
    probed_at = []
    for second in range(1, 40):
        clock.now = 1000.0 + second
        count = len(scripted.calls)
        assert stores.get("object", "k") is None
        if queried._probe is not None:
            queried._probe.join()
            queried._probe = None
        if len(scripted.calls) > count:
            probed_at.append(second)
    assert probed_at == [1, 3, 7, 15, 31]
    assert queried.ledger.waited == lost
    scripted._acts["get"] = lambda _: b"again"
    clock.now += 60.0
    queried.query("get", "object/k")
    queried._probe.join()
    assert queried.query("get", "object/k") == b"again"


def test_every_pause_is_a_line_in_the_log(capsys, monkeypatch):
    monkeypatch.setenv("RTCOMPILE_LOG", "info")
    _, queried, _ = stores_with(get=fails_late(0.0))
    with pytest.warns(RtcompileWarning) as warned:
        queried.query("get", "object/k")
    queried._clock.now += 1.0
    queried.query("get", "object/k")
    queried._probe.join()
    lines = [line for line in capsys.readouterr().err.splitlines() if "is paused" in line]
    assert (["1 s" in lines[0], "2 s" in lines[1]], len(warned)) == ([True, True], 1)


@pytest.mark.parametrize("reply", [5, "text", [b"bytes"], True, {"a": 1}])
def test_a_reply_of_another_type_is_a_miss(reply):
    stores, queried, _ = stores_with(get=lambda _: reply)
    with pytest.warns(RtcompileWarning, match="not bytes"):
        assert stores.get("object", "k") is None
    assert queried.open


def too_deep(_: object) -> None:
    raise RecursionError("maximum recursion depth exceeded")


def test_a_reply_that_cannot_be_parsed_fails_no_build():
    stores, _, _ = stores_with(get=too_deep)
    with pytest.warns(RtcompileWarning, match="recursion"):
        assert stores.get("object", "k") is None


def test_a_bad_entry_is_a_miss_and_does_not_pause_the_store():
    def bad(_: object) -> None:
        raise BadEntryError("it is a folder")

    stores, queried, scripted = stores_with(get=bad)
    with pytest.warns(RtcompileWarning, match="it is a folder"):
        assert stores.get("object", "k") is None
    assert stores.get("object", "l") is None
    assert (queried.open, scripted.calls, queried.counts["refused"]) == (True, ["get"] * 2, 2)


def test_returning_a_lease_is_tried_only_once(monkeypatch):
    stores, _, scripted = stores_with(
        create=lambda *_: True, replace=fails_late(tier.REPLY_SECONDS)
    )
    leases = [stores.lease(str(n), lambda: None) for n in range(3)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for lease in leases:
            assert isinstance(lease, Lease)
            lease.end(False)
    assert [act for act in scripted.calls if act != "get"] == ["create"] * 3 + ["replace"]
    assert len(warned) == 1


# --- what is written in the background ------------------------------------------------------------


def test_the_end_of_the_process_waits_no_longer_than_builds_would(monkeypatch, silence):
    monkeypatch.setattr(remote, "_FLUSH_SECONDS", LONG)
    stores, _, scripted = stores_with(put=silence)
    stores.push(lambda _: [("object", "k", b"code")], lambda _: None)
    while not scripted.calls:
        time.sleep(0.01)

    begin = time.monotonic()
    assert not stores.flush()
    assert time.monotonic() - begin < LONG / 2


def test_background_requests_may_be_slow():
    stores, queried, scripted = stores_with(put=late(0.15))
    stores.push(lambda _: [("object", str(n), b"code") for n in range(4)], lambda _: None)
    assert stores.flush(LONG)
    assert (scripted.calls, queried.counts["written"], queried.ledger.waited) == (
        ["put"] * 4,
        4,
        0.0,
    )


def test_a_whole_cache_is_fetched_from_a_slow_store(tmp_path):
    names = [(str(n), 1) for n in range(4)]
    stores, _, scripted = stores_with(get=late(0.15), listing=lambda _: iter(names))
    pull(stores, stores.tiers[0], Folder(str(tmp_path)))
    assert scripted.calls.count("get") == 8


def test_an_ending_process_that_cannot_start_threads_queries_in_its_own(
    monkeypatch,
):
    def none(_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", none)
    assert tier.within(1.0, lambda: "reply") == (None, 0.0, "no thread can be started to query it")
    monkeypatch.setattr(threading.main_thread(), "is_alive", lambda: False)
    assert tier.within(1.0, lambda: "reply")[0] == "reply"
