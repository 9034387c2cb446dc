"""What a store costs that answers late or never: a second in all, whoever waits, and no build.

The stores here answer when the test says so, and limits are far longer or shorter than in earnest, so
that nothing depends on how busy the machine is.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("zstandard")

from rtcompile.errors import RtcompileWarning
from rtcompile.extras.cluster.copying import pull
from rtcompile.store import remote
from rtcompile.store import remote as stores_of
from rtcompile.store.folder import Folder
from rtcompile.store.remote import Lease, Remote, Tier
from rtcompile.store.shared import RemoteSettings, StoreError

LONG = 60.0  # nothing here takes so long


class Scripted:
    """A store whose every act is a function of the test; `asked` lists the acts in order."""

    name = "scripted://"

    def __init__(self, **acts: Callable[..., object]) -> None:
        self._acts = acts
        self.asked: list[str] = []

    def __getattr__(self, act: str) -> Callable[..., Any]:
        def ask(*given: object, **_: object) -> object:
            self.asked.append(act)
            return self._acts.get(act, lambda *_: None)(*given)

        return ask


def stores_with(**acts: Callable[..., object]) -> tuple[Remote, Tier, Scripted]:
    stores = Remote(RemoteSettings(("file:///none",), unsigned=True))
    (tier,) = stores.tiers
    scripted = Scripted(**acts)
    tier.store = scripted  # type: ignore[assignment]
    return stores, tier, scripted


def late(seconds: float) -> Callable[..., None]:
    return lambda *_: time.sleep(seconds)


def fails_late(seconds: float) -> Callable[..., None]:
    def fail(*_: object) -> None:
        time.sleep(seconds)
        raise StoreError("it failed")

    return fail


@pytest.fixture
def silence() -> Iterator[Callable[..., bool]]:
    """An act that has no answer until the test is over."""
    over = threading.Event()
    yield lambda *_: over.wait(LONG)
    over.set()


def test_a_process_that_waits_for_a_processor_finds_no_store_slow(monkeypatch):
    """Each tick of the thread that waits comes late there; the store answers after five of them."""
    answered = threading.Event()
    wait, ticks = threading.Event.wait, []

    def late_wait(self: threading.Event, timeout: float | None = None) -> bool:
        if timeout != remote._TICK_SECONDS:
            return wait(self, timeout)
        ticks.append(timeout)
        if len(ticks) == 5:
            answered.set()
            return wait(self, LONG)
        time.sleep(0.1)
        return False

    stores, tier, _ = stores_with(get=lambda _: answered.wait(LONG) and None)
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 0.2)  # of which five ticks are the half
    monkeypatch.setattr(threading.Event, "wait", late_wait)
    assert stores.get("object", "k") is None
    assert (tier.left, tier.failures) == (1.0, 0)


@pytest.fixture
def patient(monkeypatch) -> None:
    for name in ("ANSWER_SECONDS", "_MOST_WAITED_SECONDS"):
        monkeypatch.setattr(remote, name, LONG)


@pytest.mark.takes_seconds
def test_once_a_store_is_left_alone_nobody_waits_for_it_any_more(patient, silence):
    stores, tier, scripted = stores_with(get=silence)
    waiting = [threading.Thread(target=stores.get, args=("object", str(n))) for n in range(4)]
    for thread in waiting:
        thread.start()
    while len(scripted.asked) < 4:
        time.sleep(0.01)
    scripted._acts["get"] = fails_late(0.0)
    with pytest.warns(RtcompileWarning, match="left alone") as warned:
        tier.ask("get", "object/k")
    for thread in waiting:
        thread.join(LONG / 2)
        assert not thread.is_alive()
    assert len(warned) == 1


def test_threads_that_wait_at_the_same_time_lose_that_time_once():
    _, tier, _ = stores_with()
    for until, waited in ((0.5, 0.1), (0.6, 0.6), (0.9, 0.4), (2.0, 0.05)):
        tier.spend(until, waited)
    assert tier.left == pytest.approx(1.0 - 0.9 - 0.05)


def test_an_answer_is_waited_for_as_long_as_is_left(monkeypatch, silence):
    monkeypatch.setattr(remote, "ANSWER_SECONDS", LONG)
    stores, tier, _ = stores_with(get=silence)
    tier.spend(time.monotonic(), 0.8)
    with pytest.warns(RtcompileWarning, match=r"from now on: no answer in 0\.2"):
        assert stores.get("object", "k") is None


def test_a_store_that_was_silent_for_a_while_is_used_again(monkeypatch, silence):
    monkeypatch.setattr(remote, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(remote, "_CLOSED_SECONDS", 0.0)
    stores, _, scripted = stores_with(get=silence)
    with pytest.warns(RtcompileWarning, match="for a minute"):
        stores.get("object", "k")
    scripted._acts["get"] = lambda _: None
    stores.get("object", "k")
    assert scripted.asked == ["get", "get"]


def test_a_lease_that_cannot_be_given_back_is_tried_once(monkeypatch):
    stores, _, scripted = stores_with(
        acquire=lambda *_: "ours", renew=fails_late(2 * remote.PROMPT_SECONDS)
    )
    leases = [stores.lease(str(n), lambda: None) for n in range(3)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for lease in leases:
            assert isinstance(lease, Lease)
            lease.end(False)
    assert scripted.asked == ["acquire"] * 3 + ["renew"]
    assert len(warned) == 1


# --- what is written in the background ------------------------------------------------------------


def test_at_the_processs_end_nobody_waits_longer_than_builds_would(monkeypatch, silence):
    monkeypatch.setattr(stores_of, "_FLUSH_SECONDS", LONG)
    monkeypatch.setattr(remote, "_MOST_WAITED_SECONDS", 0.2)
    stores, _, scripted = stores_with(put=silence)
    stores.push(lambda _: [("object", "k", b"code")], lambda _: None)
    while not scripted.asked:
        time.sleep(0.01)

    begin = time.monotonic()
    assert not stores.flush()
    assert time.monotonic() - begin < LONG / 2


def test_at_the_processs_end_slow_replies_count(monkeypatch):
    monkeypatch.setattr(remote, "_MOST_WAITED_SECONDS", 0.4)
    stores, _, scripted = stores_with(put=late(0.3))
    stores.push(lambda _: [("object", str(n), b"code") for n in range(9)], lambda _: None)
    stores.flush()
    assert len(scripted.asked) <= 2


def test_what_nobody_waits_for_may_be_slow(monkeypatch):
    monkeypatch.setattr(remote, "_MOST_WAITED_SECONDS", 0.2)
    stores, tier, scripted = stores_with(put=late(0.15))
    stores.push(lambda _: [("object", str(n), b"code") for n in range(4)], lambda _: None)
    assert stores.flush(LONG)
    assert (scripted.asked, tier.written) == (["put"] * 4, 4)


def test_a_whole_cache_is_fetched_from_a_slow_store(monkeypatch, tmp_path):
    monkeypatch.setattr(remote, "_MOST_WAITED_SECONDS", 0.2)
    names = [(str(n), 1) for n in range(4)]
    stores, _, scripted = stores_with(get=late(0.15), listing=lambda _: iter(names))
    pull(stores, Folder(str(tmp_path)))
    assert scripted.asked == ["listing", *["get"] * 4]


def test_where_no_thread_can_be_started_any_more_a_process_that_ends_asks_itself(monkeypatch):
    def none(_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", none)
    assert remote.within(1.0, lambda: "answer") == (None, 0.0, "there is no thread to ask it with")
    monkeypatch.setattr(threading.main_thread(), "is_alive", lambda: False)
    assert remote.within(1.0, lambda: "answer")[0] == "answer"
