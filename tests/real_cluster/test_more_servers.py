"""Tests of other addresses of stores: Redis Cluster and Sentinel, Valkey, WebDAV, and AWS's configuration files."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("zstandard")

import rtcompile
from rtcompile.errors import InvalidRequest
from rtcompile.extras.cluster.settings import open_store
from rtcompile.extras.cluster.stores import current
from rtcompile.store.shared import LeasesUnsupportedError
from tests import nodes, servers
from tests.jobs import until


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
def sentinels(folder: Path, master: int, *options: str, count: int = 1) -> Iterator[list[int]]:
    """Sentinels that consider a master as failed after a second; yields their ports."""
    with contextlib.ExitStack() as stack:
        ports = []
        for number in range(count):
            config = folder / f"sentinel{number}.conf"
            config.write_text(
                f"sentinel monitor main 127.0.0.1 {master} {count // 2 + 1}\n"
                "sentinel down-after-milliseconds main 1000\n"
            )
            command = ("redis-server", str(config), "--sentinel")
            ports.append(stack.enter_context(servers.redis(*options, command=command)).port)
        yield ports


@contextlib.contextmanager
def sentinel(folder: Path) -> Iterator[str]:
    pytest.importorskip("redis")
    with servers.redis() as master, sentinels(folder, master.port) as (port,):
        yield f"redis+sentinel://127.0.0.1:{port}/main/0"


@contextlib.contextmanager
def sentinel_by_tls(folder: Path) -> Iterator[str]:
    pytest.importorskip("redis")
    by, port, at = servers.certificate(folder), servers.free_port(), servers.free_port()
    with (
        servers.redis(*by.of_redis(port)),
        sentinels(folder, port, *by.of_redis(at), "--tls-replication", "yes"),
    ):
        yield f"rediss+sentinel://127.0.0.1:{at}/main/0?ssl_ca_certs={by.authority}"


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


WAYS = [cluster, cluster_by_tls, sentinel, sentinel_by_tls, s3_by_tls, valkey, old]
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
            assert store.create("f/lease/k", b"mine", 30.0)  # type: ignore[attr-defined]
            assert not store.create("f/lease/k", b"theirs", 30.0)  # type: ignore[attr-defined]
            assert store.replace("f/lease/k", b"mine", None, 30.0)  # type: ignore[attr-defined]


def test_webdav_reports_that_it_has_no_leases(tmp_path):
    with webdav(tmp_path) as address:
        store = open_store(address)
        store.put("f/object/k", b"bytes")
        assert store.get("f/object/k") == b"bytes"
        assert store.get("f/object/none") is None
        with pytest.raises(LeasesUnsupportedError):
            store.create("f/lease/k", b"mine", 30.0)  # type: ignore[attr-defined]


@pytest.mark.parametrize("missing", ["RTCOMPILE_REMOTE_TOKEN", "SSL_CERT_FILE"])
def test_without_the_token_or_the_authority_a_store_is_not_read(tmp_path, monkeypatch, missing):
    with webdav_by_tls_with_a_token(tmp_path) as address:
        monkeypatch.delenv(missing)
        with pytest.raises(Exception, match=r"401|error sending request"):
            open_store(address).get("f/object/k")


def test_an_unreachable_cluster_is_a_short_error_of_the_store():
    pytest.importorskip("redis")
    for scheme, message in (("redis+cluster", "onnect"), ("redis+sentinel", "the master 'main'")):
        with pytest.raises(Exception, match=message) as caught:
            open_store(f"{scheme}://127.0.0.1:{servers.free_port()}/main").get("f/object/k")
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("make", [cluster, sentinel, valkey], ids=lambda m: m.__name__)
def test_a_connection_that_is_idle_is_closed(tmp_path, monkeypatch, make):
    pytest.importorskip("redis")
    from rtcompile.extras.cluster import redis_store

    def sockets() -> int:
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sum(
            os.readlink(link).startswith("socket:") for link in links if os.path.lexists(link)
        )

    monkeypatch.setattr(redis_store, "_IDLE_SECONDS", 0.3)
    with make(tmp_path) as address:
        store = open_store(address)
        before = sockets()
        store.put("f/object/k", b"bytes")
        assert sockets() > before
        until(lambda: sockets() <= before)
        assert store.get("f/object/k") == b"bytes"


@pytest.mark.takes_seconds
def test_sentinels_name_another_master_when_one_fails(tmp_path):
    pytest.importorskip("redis")
    home = ["--dir", str(tmp_path)]  # the folder of the replica's copy
    with servers.redis(*home) as master:
        behind = [*home, "--replicaof", "127.0.0.1", str(master.port)]
        with servers.redis(*behind), sentinels(tmp_path, master.port, count=3) as ports:
            hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
            store = open_store(f"redis+sentinel://{hosts}/main/0")
            store.put("f/object/k", b"bytes")
            time.sleep(5.0)  # until the sentinels found the replica and each other
            master.kill()

            def is_back() -> bool:
                with contextlib.suppress(Exception):
                    store.put("f/object/k", b"later")
                    return store.get("f/object/k") == b"later"
                return False

            until(is_back)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "aws"
    folder.mkdir()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "config"))
    return folder


def test_credentials_are_read_from_awss_files(files, monkeypatch):
    (files / "credentials").write_text(
        "[team]\naws_access_key_id = from-a-file\naws_secret_access_key = secret\n"
    )
    (files / "config").write_text("[profile team]\nregion = us-east-1\n")
    with servers.s3() as server:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ALLOW_HTTP"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_PROFILE", "team")
        store = open_store(server.address)
        assert store._store.config["access_key_id"] == "from-a-file"  # type: ignore[attr-defined]
        store.put("f/object/k", b"bytes")
        assert store.get("f/object/k") == b"bytes"


def test_a_profile_that_needs_more_than_a_file_is_rejected_with_a_reason(files, monkeypatch):
    pytest.importorskip("obstore")
    (files / "config").write_text("[profile team]\nsso_session = here\n")
    for profile, message in (
        ("team", "export-credentials --profile team"),
        ("nobody", "no such profile"),
    ):
        monkeypatch.setenv("AWS_PROFILE", profile)
        with pytest.raises(InvalidRequest, match=message):
            open_store("s3://kernels/cache")
