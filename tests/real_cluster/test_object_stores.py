"""Tests of object stores with and without conditional writes, and of sharing builds by each."""

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rtcompile
from rtcompile.checkup import checks
from rtcompile.extras.cluster.entries import (
    BadEntryError,
    LeasesUnsupportedError,
    SharedStore,
    open_store,
)
from rtcompile.extras.cluster.stores import current
from rtcompile.settings import Settings
from tests import nodes, servers
from tests.cluster.test_leases import test_one_of_two_creates_an_entry_and_may_write_it_again
from tests.trials.test_cluster_trials import Proxy

__all__ = ["test_one_of_two_creates_an_entry_and_may_write_it_again"]


def opened(server: servers.Server) -> SharedStore:
    """Return a client once the store accepts writes."""
    store = open_store(server.address)
    deadline = time.monotonic() + 60
    while True:
        try:
            store.put("probe/first", b"1")
            return store
        except Exception:
            assert time.monotonic() < deadline
            time.sleep(0.5)


# They set environment variables to their address, so only one runs at a time.
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
    assert current().flush(10.0)
    return code.build.hit


def test_a_stored_value_is_returned_and_replaced(store):
    store.put("object/abc", b"bytes" * 1000)

    assert store.get("object/abc") == b"bytes" * 1000
    assert store.get("object/gone") is None
    store.put("object/abc", b"others")
    assert store.get("object/abc") == b"others"


def test_a_too_large_entry_is_not_read(store):
    store.put("f/lease/k", b"x" * (1 << 20))
    with pytest.raises(BadEntryError, match="1048576 bytes"):
        store.get("f/lease/k")


def test_a_store_that_ignores_conditions_is_used_without_leases(careless):
    careless.put("object/abc", b"bytes")
    assert careless.get("object/abc") == b"bytes"
    with pytest.raises(LeasesUnsupportedError, match="ignores conditions"):
        careless.create("f/lease/k", b"mine")  # type: ignore[attr-defined]


def test_nodes_share_builds(store, on):
    scheme = store.name.partition(":")[0]
    on("a", scheme)
    assert build(1) is None
    on("b", scheme)
    assert build(1) == "remote"


def test_nodes_share_builds_by_a_store_without_leases(careless, on):
    on("a")
    assert build(2) is None
    on("b")
    assert build(2) == "remote"
    (check,) = checks.shared_stores(Settings.from_environ())
    assert (check.status, "ignores conditions" in check.hint) == ("warning", True)


def test_without_credentials_a_public_store_is_read_and_never_written(seaweed, on, monkeypatch):
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


def test_wrong_credentials_are_one_warning_and_no_build(seaweed, on, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    on("a")
    with pytest.warns(rtcompile.RtcompileWarning, match="RTCOMPILE_REMOTE: s3://") as warned:
        assert [build(3), build(4)] == [None, None]
    assert len(warned) == 1


class Counted(Proxy):
    """Passes bytes on to a server, and counts the requests of its clients."""

    def __init__(self, port: int) -> None:
        self.lines: list[bytes] = []
        super().__init__(port)

    def _pass(self, source: socket.socket, target: socket.socket, _: bool) -> None:
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(1 << 16):
                found = re.findall(rb"^(?:GET|PUT|POST|DELETE|HEAD) /[^ ]*", data, re.MULTILINE)
                self.lines += found
                target.sendall(data)


def test_a_cold_build_takes_three_requests_and_a_hit_one(moto, on, monkeypatch):
    counted = Counted(int(os.environ["AWS_ENDPOINT_URL"].rpartition(":")[2]))
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{counted.port}")
    on("a")
    monkeypatch.setenv("RTCOMPILE_REMOTE_TTL", "99")  # forces a new client, for the proxy
    build(1)  # tests whether the store supports conditional writes
    counted.lines.clear()
    for number in range(2, 7):
        assert build(number) is None
    assert len(counted.lines) == 3 * 5, counted.lines
    on("b")
    counted.lines.clear()
    for number in range(2, 7):
        assert build(number) == "remote"
    assert len(counted.lines) == 5, counted.lines
