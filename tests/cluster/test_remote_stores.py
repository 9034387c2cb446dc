"""Tests of shared stores from a client's view: values, settings, and failures."""

import os
import re
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("zstandard")

from rtcompile.errors import InvalidRequest, RtcompileWarning
from rtcompile.extras.cluster.entries import RemoteSettings, StoreError, open_store
from rtcompile.extras.cluster.stores import Stores
from tests import servers
from tests.jobs import until
from tests.nodes import pushed, remote
from tests.tables import from_table


def test_a_node_of_a_redis_cluster_is_named_with_the_address_to_write():
    redis = pytest.importorskip("redis")
    from rtcompile.extras.cluster.redis_store import _entry

    moved = redis.exceptions.MovedError("1 127.0.0.1:7001")
    with pytest.raises(StoreError, match=r"write redis\+cluster:// in RTCOMPILE_REMOTE"):
        _entry("object/abc", moved)


@pytest.mark.needs_redis
def test_the_users_of_the_page_have_the_rights_of_nodes_and_no_more():
    redis = pytest.importorskip("redis")
    page = (Path(__file__).parents[2] / "docs/cluster.md").read_text(encoding="utf-8")
    with servers.redis() as server:
        admin = redis.Redis.from_url(server.address)
        for rights in re.findall("^ACL SETUSER .+", page, re.MULTILINE):
            admin.execute_command(*rights.split())
        builder, reader = (
            open_store(
                server.address.replace("//", f"//{user}:PASSWORD@"), RemoteSettings((), mode)
            )
            for user, mode in (("builder", "rw"), ("reader", "ro"))
        )
        assert builder.create("f/lease/abc", b"one")
        builder.put("f/lease/abc", b"two")
        builder.put("object/abc", b"bytes")
        assert builder.get("object/abc") == reader.get("object/abc") == b"bytes"
        with pytest.raises(redis.exceptions.NoPermissionError):
            reader.put("object/abc", b"forged")


@pytest.mark.needs_redis
def test_redis_removes_an_entry_after_its_time():
    with servers.redis() as server:
        store = open_store(server.address, RemoteSettings((), ttl=60.0))
        store.put("object/abc", b"bytes")
        assert 0 < store._redis.ttl("rtcompile:object/abc") <= 60
        store.create("f/lease/abc", b"bytes")
        assert 0 < store._redis.ttl("rtcompile:f/lease/abc") <= 5
        store._redis.expire("rtcompile:object/abc", 9)
        store.get("object/abc")  # a used entry stays
        assert store._redis.ttl("rtcompile:object/abc") > 9


@pytest.mark.needs_redis
def test_redis_is_reached_by_tls_and_by_a_socket(tmp_path):
    by, port = servers.certificate(tmp_path), servers.free_port()
    with servers.redis(*by.of_redis(port), "--unixsocket", f"{tmp_path}/socket"):
        until(lambda: servers.accepts_connections(port) and os.path.exists(f"{tmp_path}/socket"))
        address = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={by.authority}"
        open_store(address).put("object/abc", b"bytes")
        assert open_store(f"unix://{tmp_path}/socket").get("object/abc") == b"bytes"
        with pytest.raises(Exception, match=r"(?i)certificate"):
            open_store(f"rediss://127.0.0.1:{port}/0").get("object/abc")


@pytest.mark.takes_seconds
@pytest.mark.parametrize(
    "address", ["redis://:secret@h:1/0", "redis://me:secret@h:1/0", "redis://h:1/0?password=secret"]
)
def test_no_message_shows_a_password(address):
    assert open_store(address).name == "redis://h:1/0"


# --- settings --------------------------------------------------------------------------------------


def test_a_missing_client_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "rtcompile.extras.cluster.redis_store", raising=False)

    with pytest.raises(InvalidRequest, match="pip install redis") as caught:
        Stores(RemoteSettings(("redis://user:secret@h:1/0",)))
    assert "secret" not in str(caught.value)


# --- failures -------------------------------------------------------------------------------


def test_an_entry_of_another_key_is_not_used(address, key_file, tmp_path):
    stores = remote(address, key_file)
    pushed(stores, ("object", "k", b"code"))
    (level,) = stores.levels
    store_key = level.keys[0].store_key
    entry = level.store.get(store_key("object", "k"))
    level.store.put(store_key("object", "swapped"), entry)

    with pytest.warns(RtcompileWarning, match="its signature is not .*RTCOMPILE_REMOTE_KEY_FILE"):
        assert level.get("object", "swapped") is None


@pytest.mark.needs_redis
def test_a_wrong_password_is_reported_once_and_not_shown(key_file):
    with servers.redis("--requirepass", servers.SECRET.replace(" ", "-")) as server:
        address = server.address.replace("redis://", "redis://:wrong-password@")
        stores = remote(address, key_file)
        with pytest.warns(RtcompileWarning, match="(?i)password|auth") as warned:
            assert stores.levels[0].get("object", "k") is None

    assert "wrong-password" not in str(warned[0].message)


@from_table
def test_an_error_of_an_object_store_is_reported_once_with_its_message(
    key_file, status, code, message
):
    with servers.s3_that_refuses(status, code) as address:
        stores = remote(address, key_file)
        with pytest.warns(RtcompileWarning, match=f"RTCOMPILE_REMOTE: s3://.*{message}") as warned:
            assert stores.levels[0].get("object", "k") is None
        pushed(stores, ("object", "k", b"code"))
    assert len(warned) == 1


def test_a_read_only_mode_writes_nothing_and_takes_no_lease(address, key_file):
    stores = remote(address, key_file, mode="ro")

    assert not stores.writes
    assert stores.lease("k", lambda: None) is None


def test_zstandard_is_named(tmp_path, key_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InvalidRequest, match="pip install zstandard"):
        remote(f"file://{tmp_path}/s", key_file)


def test_resolving_a_host_name_has_a_time_limit(key_file, monkeypatch):
    stores = remote("redis://cache.example:6379/0", key_file)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: time.sleep(5.0))
    begin = time.monotonic()
    with pytest.warns(RtcompileWarning, match="no reply"):
        assert [stores.levels[0].get("object", str(number)) for number in range(9)] == [None] * 9
    assert time.monotonic() - begin < 20.0  # instead of 9 times 5 s


def test_a_read_only_folder_can_be_read(tmp_path):
    store = open_store(f"file://{tmp_path}/nothing")
    assert store.get("object/k") is None
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        open_store(f"file://{tmp_path}/file").put("object/k", b"")
