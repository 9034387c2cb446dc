"""Tests of other addresses of stores: Redis Cluster, Valkey and WebDAV."""

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("zstandard")

import rtcompile
from rtcompile.extras.cluster.entries import LeasesUnsupportedError, open_store
from rtcompile.extras.cluster.stores import current
from tests import nodes, servers


@contextlib.contextmanager
def cluster(folder: Path, by: servers.Certificate | None = None) -> Iterator[str]:
    """A cluster of two servers, each with half of the slots."""
    redis = pytest.importorskip("redis")
    ports = [servers.free_port() for _ in range(2)] if by else []
    with contextlib.ExitStack() as stack:
        made = []
        for number in range(2):
            home = folder / f"node{number}"
            home.mkdir()
            options = ["--cluster-enabled", "yes", "--dir", str(home)]
            options += [*by.of_redis(ports[number]), "--tls-cluster", "yes"] if by else []
            server = stack.enter_context(servers.redis(*options))
            client = redis.Redis(port=server.port)
            first, last = (0, 8191) if number == 0 else (8192, 16383)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            made.append((server, client))
        ports = ports or [server.port for server, _ in made]
        made[0][1].execute_command("CLUSTER", "MEET", "127.0.0.1", ports[1])
        deadline = time.monotonic() + 60.0
        while not all(
            "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO"))
            for _, client in made
        ):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for _, client in made:
            client.close()
        tls = f"s+cluster://127.0.0.1:{ports[0]}/0?ssl_ca_certs={by.authority}" if by else ""
        yield f"redis{tls or f'+cluster://127.0.0.1:{ports[0]}'}"


@contextlib.contextmanager
def cluster_by_tls(folder: Path) -> Iterator[str]:
    with cluster(folder, servers.certificate(folder)) as address:
        yield address


@contextlib.contextmanager
def s3_by_tls(folder: Path) -> Iterator[str]:
    with servers.s3(servers.certificate(folder)) as server:
        yield server.address


@contextlib.contextmanager
def valkey(folder: Path) -> Iterator[str]:
    with servers.redis() as server:
        yield server.address.replace("redis://", "valkey://")


@contextlib.contextmanager
def old(folder: Path) -> Iterator[str]:
    """A server without the greeting, as before Redis 6."""
    with servers.redis("--rename-command", "HELLO", "", "--rename-command", "CLIENT", "") as server:
        yield server.address


@contextlib.contextmanager
def webdav(folder: Path) -> Iterator[str]:
    program = servers.rclone()
    port = servers.free_port()
    home = folder / "dav"
    home.mkdir()
    command = [program, "serve", "webdav", "--addr", f"127.0.0.1:{port}", "--config", "/dev/null"]
    with servers.running([*command, str(home)], port, "") as _:
        yield f"http://127.0.0.1:{port}"


@contextlib.contextmanager
def webdav_by_tls_with_a_token(folder: Path) -> Iterator[str]:
    """The same behind a proxy with TLS that requires a bearer token."""
    by = servers.certificate(folder)
    values = {"SSL_CERT_FILE": by.authority, "RTCOMPILE_REMOTE_TOKEN": servers.SECRET}
    with webdav(folder) as inner, servers.gate(inner, by) as address, servers.environment(values):
        yield address


WAYS = [cluster, cluster_by_tls, s3_by_tls, valkey, old]
WAYS += [webdav, webdav_by_tls_with_a_token]


@pytest.mark.needs_compiler
@pytest.mark.parametrize("make", WAYS, ids=lambda m: m.__name__)
def test_nodes_share_builds_by_each_address(on, tmp_path, make):
    with make(tmp_path) as address:
        for node, expected in (("a", None), ("b", "remote")):
            on(node, address)
            hits = [rtcompile.compile(nodes.source(n), arch="sm_80").build.hit for n in range(4)]
            assert hits == [expected] * 4
            assert current().flush(20.0)
        if "webdav" not in make.__name__:
            store = open_store(address)
            assert store.create("f/lease/k", b"mine")  # type: ignore[attr-defined]
            assert not store.create("f/lease/k", b"theirs")  # type: ignore[attr-defined]


def test_webdav_reports_that_it_has_no_leases(tmp_path):
    with webdav(tmp_path) as address:
        store = open_store(address)
        store.put("f/object/k", b"bytes")
        assert store.get("f/object/k") == b"bytes"
        assert store.get("f/object/none") is None
        with pytest.raises(LeasesUnsupportedError):
            store.create("f/lease/k", b"mine")  # type: ignore[attr-defined]


@pytest.mark.parametrize("missing", ["RTCOMPILE_REMOTE_TOKEN", "SSL_CERT_FILE"])
def test_without_the_token_or_the_authority_a_store_is_not_read(tmp_path, monkeypatch, missing):
    with webdav_by_tls_with_a_token(tmp_path) as address:
        monkeypatch.delenv(missing)
        with pytest.raises(Exception, match=r"401|error sending request"):
            open_store(address).get("f/object/k")


def test_an_unreachable_cluster_is_a_short_error_of_the_store():
    pytest.importorskip("redis")
    with pytest.raises(Exception, match="onnect") as caught:
        open_store(f"redis+cluster://127.0.0.1:{servers.free_port()}/0").get("f/object/k")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("make", [cluster, valkey], ids=lambda m: m.__name__)
def test_a_connection_that_the_server_closed_is_opened_again(tmp_path, make):
    redis = pytest.importorskip("redis")
    with make(tmp_path) as address:
        store = open_store(address)
        store.put("f/object/k", b"bytes")
        port = re.findall(r"127\.0\.0\.1:(\d+)", address)[0]
        with redis.Redis(port=int(port)) as admin:
            admin.execute_command("CLIENT", "KILL", "TYPE", "normal")
        assert store.get("f/object/k") == b"bytes"
