"""Object stores that keep conditions, and one that ignores them; builds that nodes share by each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rtcompile
from rtcompile.doctor import checks
from rtcompile.settings import Settings
from rtcompile.store.remote import remote
from rtcompile.store.shared import LeasesUnsupportedError, SharedStore, open_store
from tests import nodes, servers


def opened(server: servers.Server) -> SharedStore:
    """Return a client, once the store takes what is written."""
    store = open_store(server.address)
    deadline = time.monotonic() + 60
    while True:
        try:
            store.put("probe/first", b"1")
            return store
        except Exception:
            assert time.monotonic() < deadline
            time.sleep(0.5)


# They set the environment to their address: one at a time.
@pytest.fixture
def moto() -> Iterator[SharedStore]:
    with servers.s3() as server:
        yield opened(server)


@pytest.fixture
def seaweed() -> Iterator[SharedStore]:
    with servers.seaweed() as server:
        yield opened(server)


@pytest.fixture
def azurite() -> Iterator[SharedStore]:
    with servers.azure() as server:
        yield opened(server)


@pytest.fixture(params=["moto", "seaweed", "azurite"])
def store(request: pytest.FixtureRequest) -> SharedStore:
    store: SharedStore = request.getfixturevalue(request.param)
    return store


@pytest.fixture
def careless() -> Iterator[SharedStore]:
    with servers.s3_without_conditions() as server:
        yield opened(server)


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., None]:
    def go(node: str, scheme: str = "s3") -> None:
        for name, value in nodes.environment(tmp_path, node, f"{scheme}://kernels/cache").items():
            monkeypatch.setenv(name, value)

    return go


def build(number: int) -> str | None:
    code = rtcompile.compile(nodes.source(number), arch="sm_80")
    assert remote().flush(10.0)
    return code.build.hit


def test_what_was_put_is_got_and_listed(store: SharedStore):
    store.put("object/abc", b"bytes" * 1000)

    assert store.get("object/abc") == b"bytes" * 1000
    assert store.get("object/gone") is None
    assert ("abc", 5000) in list(store.listing("object"))
    assert abs(store.clock("object/abc") - time.time()) < 5.0
    store.delete("object/abc")
    assert store.get("object/abc") is None


def test_one_of_two_gets_the_lease_until_it_is_released(store: SharedStore):
    assert store.acquire("lease/k", "mine", 30.0) == "ours"
    assert store.acquire("lease/k", "theirs", 30.0) == "another's"
    store.release("lease/k", "mine")
    assert store.acquire("lease/k", "theirs", 30.0) == "ours"


def test_a_lease_that_ended_is_taken_over(store: SharedStore):
    assert store.acquire("lease/old", "mine", -1.0) == "ours"
    assert store.acquire("lease/old", "theirs", 30.0) == "ours"


def test_of_two_that_find_a_lease_ended_one_takes_it_over(store: SharedStore, monkeypatch):
    faster = open_store(store.name)
    assert store.acquire("lease/old", "dead", -1.0) == "ours"
    held = store._held  # type: ignore[attr-defined]

    def between(key: str) -> object:
        found = held(key)
        assert faster.acquire(key, "faster", 30.0) == "ours"
        return found

    monkeypatch.setattr(store, "_held", between)
    assert store.acquire("lease/old", "slower", 30.0) == "another's"


def test_a_lease_is_renewed_by_its_holder_alone(store: SharedStore):
    assert store.acquire("lease/k", "mine", 1.0) == "ours"
    store.renew("lease/k", "theirs", -1.0)
    store.renew("lease/k", "mine", 60.0)
    time.sleep(1.1)
    assert store.acquire("lease/k", "theirs", 30.0) == "another's"


def test_a_lease_that_was_abandoned_delays_nobody(store: SharedStore):
    assert store.acquire("lease/quick", "mine", 30.0) == "ours"
    store.renew("lease/quick", "mine", 30.0, abandon=True)
    assert [store.acquire("lease/quick", each, 30.0) for each in ("a", "b")] == ["abandoned"] * 2


def test_a_store_that_ignores_conditions_is_used_without_leases(careless: SharedStore):
    careless.put("object/abc", b"bytes")
    assert careless.get("object/abc") == b"bytes"
    with pytest.raises(LeasesUnsupportedError, match="ignores conditions"):
        careless.acquire("lease/k", "mine", 30.0)


def test_nodes_share_builds(store: SharedStore, on):
    scheme = store.name.partition(":")[0]
    on("a", scheme)
    assert build(1) is None
    on("b", scheme)
    assert build(1) == "remote"


def test_nodes_share_builds_by_a_store_without_leases(careless: SharedStore, on):
    on("a")
    assert build(2) is None
    on("b")
    assert build(2) == "remote"
    (check,) = checks.shared_stores(Settings.from_environ())
    assert (check.status, "ignores conditions" in check.hint) == ("warning", True)


def test_without_credentials_a_public_store_is_read_and_never_written(
    seaweed: SharedStore, on, monkeypatch
):
    on("a")
    assert build(5) is None
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("RTCOMPILE_REMOTE_MODE", "anonymous")
    on("b")
    assert build(5) == "remote"
    assert build(6) is None
    (check,) = checks.shared_stores(Settings.from_environ())
    assert (check.status, "anonymous: nothing is written" in check.detail) == ("ok", True)


def test_wrong_credentials_are_one_warning_and_no_build(seaweed: SharedStore, on, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    on("a")
    with pytest.warns(rtcompile.RtcompileWarning, match="RTCOMPILE_REMOTE: s3://") as warned:
        assert [build(3), build(4)] == [None, None]
    assert len(warned) == 1
