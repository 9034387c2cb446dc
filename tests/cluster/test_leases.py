"""Tests of leases: one node builds and the others wait for it, but not for a dead node."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

pytest.importorskip("zstandard")

from rtcompile.errors import RtcompileWarning
from rtcompile.extras.cluster.stores import Busy, Lease, Stores
from tests import nodes


def test_one_of_two_creates_an_entry_and_may_write_it_again(store):
    assert store.create("f/lease/k", b"mine")
    assert not store.create("f/lease/k", b"theirs")
    assert store.get("f/lease/k") == b"mine"
    store.put("f/lease/k", b"again")
    assert store.get("f/lease/k") == b"again"
    assert not store.create("f/lease/k", b"theirs")


made: list[Stores] = []


@pytest.fixture(autouse=True)
def leases() -> Iterator[None]:
    """End leases with their test, so no lease is renewed, with a warning, in another test."""
    yield
    while made:
        made.pop().held.clear()


def remote(address: str, key_file: str) -> Stores:
    made.append(nodes.remote(address, key_file))
    return made[-1]


# --- how long a lease is valid ---


@pytest.fixture
def slept() -> list[float]:
    """Return the list of times that this process slept, by a clock that only sleeping advances."""
    return []


def waits_by_its_own_clock(stores: Stores, slept: list[float], each: Callable[[], object]) -> None:
    def sleep(seconds: float) -> None:
        slept.append(seconds)
        each()

    stores.now, stores.sleep = lambda: sum(slept), sleep


def held_in(tmp_path, key_file, *keys: str) -> tuple[Stores, str]:
    """Return a node whose store has leases of these keys that are never renewed."""
    address = f"file://{tmp_path}/s"
    theirs = remote(address, key_file)
    for key in keys:
        data = Lease(theirs.levels[0], key, "k.cu").data()
        assert theirs.levels[0].put("lease", key, data, new=True)
    return remote(address, key_file), address


def test_a_stuck_lease_is_waited_for_a_few_seconds_and_the_third_not_at_all(
    tmp_path, key_file, slept, capsys, monkeypatch
):
    monkeypatch.setenv("RTCOMPILE_LOG", "info")
    ours, _ = held_in(tmp_path, key_file, "a", "b", "c")
    waits_by_its_own_clock(ours, slept, lambda: None)
    took = []
    for key in "abc":
        before = sum(slept)
        assert isinstance(ours.lease(key, lambda: None), Lease)
        took.append(sum(slept) - before)
    assert 5.0 <= took[0] < 6.0
    assert 5.0 <= took[1] < 6.0
    assert took[2] < 0.1
    stderr = capsys.readouterr().err
    assert f"waiting 2 s so far for {socket.gethostname()}" in stderr
    assert "which compiles k.cu" in stderr
    assert stderr.count("did not renew its lease") == 2


def test_a_lease_is_valid_as_long_as_it_is_renewed(tmp_path, key_file, slept):
    ours, address = held_in(tmp_path, key_file)
    theirs = remote(address, key_file)
    lease = Lease(theirs.levels[0], "k", "k.cu")
    assert lease.renew()
    renewed = [0.0]

    def each() -> None:
        if sum(slept) - renewed[0] >= 3.0 and sum(slept) < 60.0:
            renewed[0] = sum(slept)
            assert lease.renew()

    waits_by_its_own_clock(ours, slept, each)
    assert isinstance(ours.lease("k", lambda: None), Lease)
    assert 62.0 < sum(slept) < 70.0


def test_of_nodes_that_take_over_a_lease_at_once_one_builds(tmp_path, key_file, slept):
    ours, address = held_in(tmp_path, key_file, "k")
    faster = remote(address, key_file)
    theirs = Lease(faster.levels[0], "k")

    def each() -> None:
        if ours.stalls == 1 and theirs.look()["program"] == "ours":
            assert theirs.renew()

    waits_by_its_own_clock(ours, slept, each)
    built = [None, b"theirs"]
    look = lambda: built.pop(0) if theirs.look()["program"] == "" else None  # noqa: E731
    assert ours.lease("k", look, program="ours") == b"theirs"


@pytest.mark.parametrize("forged", [b"", b"a lease of a stranger", b"{}" * 1000])
def test_a_forged_lease_delays_no_build(tmp_path, key_file, slept, forged):
    ours, _ = held_in(tmp_path, key_file)
    (level,) = ours.levels
    level.store.put(level.keys[0].store_key("lease", "k"), forged)
    waits_by_its_own_clock(ours, slept, lambda: None)
    with pytest.warns(RtcompileWarning, match="returned an entry that is not used: lease k"):
        assert isinstance(ours.lease("k", lambda: None), Lease)
    assert sum(slept) < 0.1


def test_an_invalid_lease_file_is_ignored_with_one_warning(tmp_path, key_file, slept):
    ours, _ = held_in(tmp_path, key_file)
    path = tmp_path / "s" / ours.levels[0].keys[0].store_key("lease", "k")
    path.mkdir(parents=True)
    waits_by_its_own_clock(ours, slept, lambda: None)
    with pytest.warns(RtcompileWarning, match="is not a regular file"):
        assert ours.lease("k", lambda: None) is None
    assert slept == []


def test_a_batch_with_other_builds_does_not_wait_for_a_lease(tmp_path, key_file, slept):
    ours, _ = held_in(tmp_path, key_file, "k")
    waits_by_its_own_clock(ours, slept, lambda: None)
    with pytest.raises(Busy):
        ours.lease("k", lambda: None, waits=False)
    assert slept == []


# --- nodes ---


def test_a_node_that_waits_for_a_lease_gets_its_holders_build(address, key_file):
    ours, theirs = remote(address, key_file), remote(address, key_file)
    held = theirs.lease("k", lambda: theirs.levels[0].get("object", "k"))
    theirs.push(lambda *_: [("object", "k", b"code")], partial(theirs.end_lease, held))
    assert ours.lease("k", lambda: ours.levels[0].get("object", "k")) == b"code"


@pytest.mark.takes_seconds
def test_a_node_that_waits_for_a_build_accepts_slow_replies(tmp_path, key_file, monkeypatch):
    address = f"file://{tmp_path}/s"
    ours, theirs = remote(address, key_file), remote(address, key_file)
    held = theirs.lease("k", lambda: None)
    store = ours.levels[0].store
    for name in ("get", "create"):
        monkeypatch.setattr(store, name, after(0.3, getattr(store, name)))
    entries = [("object", "k", b"code")]
    threading.Timer(
        2.0, lambda: theirs.push(lambda *_: entries, partial(theirs.end_lease, held))
    ).start()
    assert ours.lease("k", lambda: ours.levels[0].get("object", "k")) == b"code"
    assert not ours.levels[0].is_silent


def after(seconds: float, function: Callable[..., object]) -> Callable[..., object]:
    def slow(*args: object) -> object:
        time.sleep(seconds)
        return function(*args)

    return slow


def test_waiting_ends_if_the_builder_does_not_share_its_build(address, key_file):
    first, *others = [remote(address, key_file) for _ in range(4)]
    lease = first.lease("k", lambda: None)
    assert isinstance(lease, Lease)

    first.end_lease(lease, shared=False)

    assert [each.lease("k", lambda: None) for each in others] == [None] * 3


def test_waiting_for_another_node_ends_at_the_time_limit(address, key_file):
    theirs, ours = remote(address, key_file), remote(address, key_file)
    theirs.lease("k", lambda: None)

    begin = time.monotonic()
    assert ours.lease("k", lambda: None, 0.3) is None

    assert 0.3 <= time.monotonic() - begin < 30.0  # the lease is valid for minutes
