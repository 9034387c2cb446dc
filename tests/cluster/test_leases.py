"""Leases on builds: one node builds, the others wait for it, and none waits for a dead one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("zstandard")

from rtcompile.store.remote import Lease
from rtcompile.store.shared import SharedStore
from tests import servers
from tests.nodes import remote


def test_one_of_two_gets_the_lease_until_it_is_released(store: SharedStore):
    assert store.acquire("lease/k", "mine", 30.0) == "ours"
    assert store.acquire("lease/k", "theirs", 30.0) == "another's"
    store.release("lease/k", "theirs")
    assert store.acquire("lease/k", "theirs", 30.0) == "another's"
    store.release("lease/k", "mine")
    assert store.acquire("lease/k", "theirs", 30.0) == "ours"


def test_a_lease_ends_by_itself_unless_it_is_renewed(store: SharedStore):
    seconds, took = 0.1, 1.0
    while took > seconds:  # renewed too late
        seconds *= 2
        begin = time.monotonic()
        store.acquire(f"lease/{seconds}", "mine", seconds)
        store.renew(f"lease/{seconds}", "mine", 30.0)
        took = time.monotonic() - begin
    time.sleep(seconds + 0.1)
    assert store.acquire(f"lease/{seconds}", "theirs", 30.0) == "another's"
    store.acquire("lease/other", "mine", 0.1)
    time.sleep(0.2)
    assert store.acquire("lease/other", "theirs", 30.0) == "ours"


@pytest.fixture(autouse=True)
def leases(monkeypatch) -> Iterator[None]:
    """Leases end with their test, so that none is renewed, with a warning, in another one."""
    made: list[Lease] = []
    real = Lease.__init__

    def init(self: Lease, *given: object) -> None:
        made.append(self)
        real(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Lease, "__init__", init)
    yield
    for lease in made:
        lease._ended.set()


def test_who_waits_for_a_lease_gets_what_its_holder_built(address, key_file):
    ours, theirs = remote(address, key_file), remote(address, key_file)
    held = theirs.lease("k", lambda: theirs.get("object", "k"))
    theirs.push(lambda tier: [("object", "k", b"code")], held.end)
    assert ours.lease("k", lambda: ours.get("object", "k")) == b"code"


@pytest.mark.takes_seconds
def test_who_waits_for_a_build_waits_for_slow_replies_too(tmp_path, key_file, monkeypatch):
    address = f"file://{tmp_path}/s"
    ours, theirs = remote(address, key_file), remote(address, key_file)
    held = theirs.lease("k", lambda: None)
    store = ours.tiers[0].store
    for name in ("get", "acquire"):
        monkeypatch.setattr(store, name, after(0.3, getattr(store, name)))
    entries = [("object", "k", b"code")]
    threading.Timer(2.0, lambda: theirs.push(lambda tier: entries, held.end)).start()
    assert ours.lease("k", lambda: ours.get("object", "k")) == b"code"
    assert ours.tiers[0].open


def after(seconds: float, function: Callable[..., object]) -> Callable[..., object]:
    def slow(*args: object) -> object:
        time.sleep(seconds)
        return function(*args)

    return slow


def test_a_lease_whose_holder_died_is_taken_over(address, key_file, monkeypatch):
    from rtcompile.store import remote as module

    monkeypatch.setattr(module, "LEASE_SECONDS", 0.3)
    monkeypatch.setattr(module, "_RENEW_SECONDS", 60.0)  # its holder renews nothing any more
    dead, ours = remote(address, key_file), remote(address, key_file)
    assert dead.lease("k", lambda: None)
    lease = ours.lease("k", lambda: None)
    assert isinstance(lease, module.Lease)
    lease.end(True)


def test_a_lease_whose_holder_takes_too_long_is_taken_over(address, key_file, monkeypatch):
    from rtcompile.store import remote as module

    for name in ("LEASE_SECONDS", "_MOST_HELD_SECONDS"):
        monkeypatch.setattr(module, name, 0.4)
    monkeypatch.setattr(module, "_RENEW_SECONDS", 0.1)
    slow, ours = remote(address, key_file), remote(address, key_file)
    begin = time.monotonic()
    slow.lease("k", lambda: None)
    assert isinstance(ours.lease("k", lambda: None, 30.0), Lease)
    assert 0.4 < time.monotonic() - begin < 30.0


def test_nobody_waits_for_what_its_builder_does_not_share(address, key_file):
    first, *others = [remote(address, key_file) for _ in range(4)]
    lease = first.lease("k", lambda: None)
    assert isinstance(lease, Lease)

    lease.end(False)

    assert [each.lease("k", lambda: None) for each in others] == [None] * 3


@pytest.mark.needs_redis
def test_a_full_store_gives_a_lease_back_that_cannot_be_abandoned(key_file):
    with servers.redis() as server:
        ours, theirs = remote(server.address, key_file), remote(server.address, key_file)
        lease = ours.lease("k", lambda: None)
        ours.tiers[0].store._redis.config_set("maxmemory", "1")
        lease.end(False)
        ours.tiers[0].store._redis.config_set("maxmemory", "0")
        assert isinstance(theirs.lease("k", lambda: None), Lease)


def test_who_has_a_time_limit_waits_no_longer_for_another_node(address, key_file):
    theirs, ours = remote(address, key_file), remote(address, key_file)
    held = theirs.lease("k", lambda: None)

    begin = time.monotonic()
    assert ours.lease("k", lambda: None, 0.3) is None

    assert 0.3 <= time.monotonic() - begin < 30.0  # of the minutes that it is held for
    held.end(True)
