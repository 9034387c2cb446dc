"""Tests of the entries of a shared store: signed with a secret key, and limited in size by kind."""

import os
import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("zstandard")

from rtcompile.errors import InvalidRequest, RtcompileWarning
from rtcompile.extras.cluster import entries as shared
from rtcompile.extras.cluster import entries as stores
from rtcompile.extras.cluster.entries import (
    UNSIGNED,
    BadEntryError,
    RemoteSettings,
    read_keys,
    secret_key,
)
from rtcompile.extras.cluster.stores import Stores
from tests.nodes import KEY, pushed


@pytest.mark.parametrize("states_its_size", [True, False])
@pytest.mark.parametrize("kind", ["object", "manifest"])
def test_decompression_is_limited_by_the_kind_of_entry(kind, states_its_size, monkeypatch):
    import zstandard

    monkeypatch.setitem(stores.MOST_BYTES, kind, 1000)
    compressor = zstandard.ZstdCompressor(write_content_size=states_its_size)
    key = secret_key(KEY)
    size = 1001 if states_its_size else 1000
    bomb = compressor.compress(bytes(size))
    signature = key.sign(shared._signed(kind, "k", bomb))
    entry = shared._MAGIC + signature + bomb

    with pytest.raises(BadEntryError, match="larger than any"):
        key.open(kind, "k", entry)
    assert key.open(kind, "k", key.seal(kind, "k", bytes(1000))) == bytes(1000)


def test_no_entry_above_the_largest_size_is_written_or_read(address, monkeypatch):
    (level,) = Stores(RemoteSettings((address,))).levels
    code = os.urandom(20_000)
    monkeypatch.setitem(stores.MOST_BYTES, "object", 16_000)
    assert not level.put("object", "k", code)
    assert level.get("object", "k") is None
    monkeypatch.setitem(stores.MOST_BYTES, "object", 20_000)
    assert level.put("object", "k", code)
    assert level.get("object", "k") == code
    monkeypatch.setitem(stores.MOST_BYTES, "object", 10_000)
    with pytest.warns(RtcompileWarning, match="bytes"):
        assert level.get("object", "k") is None


@pytest.mark.parametrize(
    ("mode", "data", "what"),
    [
        pytest.param(0o644, KEY, "chmod 600", id="readable by others"),
        pytest.param(0o600, b"short", "at least 16 bytes", id="short"),
        pytest.param(None, b"", "No such file", id="not there"),
    ],
)
def test_an_unsafe_key_file_is_rejected(tmp_path, mode, data, what):
    path = tmp_path / "key"
    if mode is not None:
        path.write_bytes(data)
        path.chmod(mode)

    with pytest.raises(InvalidRequest, match=what):
        read_keys(str(path))


@pytest.mark.skipif(os.getuid() != 0, reason="only root has files of root's")
def test_roots_key_file_may_be_readable_by_the_group(tmp_path, monkeypatch):
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o440)
    with pytest.raises(InvalidRequest, match="chmod 600"):
        read_keys(str(path))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert read_keys(str(path))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_another_users_key_file_is_rejected(key_file, monkeypatch):
    os.chown(key_file, 1234, 1234)
    with pytest.raises(InvalidRequest, match="belongs to user 1234, neither to 0"):
        read_keys(key_file)
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    assert read_keys(key_file)


def test_a_key_is_replaced_without_a_miss(tmp_path, address):
    old, new = KEY, KEY[::-1]
    path = tmp_path / "keys"

    def node(*keys: bytes) -> Stores:
        path.write_bytes(b"\n".join(keys) + b"\n")
        path.chmod(0o600)
        return Stores(RemoteSettings((address,), key_file=str(path)))

    pushed(node(old), ("object", "before", b"code"))
    pushed(node(new, old), ("object", "after", b"code"))
    for each in (node(new, old), node(old, new)):
        assert [each.levels[0].get("object", name) for name in ("before", "after")] == [b"code"] * 2
    assert node(new).levels[0].get("object", "before") is None


def test_a_node_that_only_reads_cannot_forge_entries(tmp_path, address):
    """With the pair of keys that the page's commands make."""
    pytest.importorskip("cryptography")
    page = (Path(__file__).parents[2] / "docs/cluster.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"```sh\n(openssl genpkey.*?)```", page, re.DOTALL)
    subprocess.run(["sh", "-ec", commands], env={**os.environ, "HOME": str(tmp_path)}, check=True)
    private, public = (tmp_path / f".rtcompile-key{suffix}" for suffix in ("", ".pub"))
    writer, reader = (
        Stores(RemoteSettings((address,), key_file=str(path))) for path in (private, public)
    )
    pushed(writer, ("object", "k", b"code"))
    assert reader.levels[0].get("object", "k") == b"code"
    assert not reader.writes
    sealed = writer.levels[0].keys[0].seal("object", "k", b"code")
    for forged in (
        sealed[:-1] + b"x",
        UNSIGNED.seal("object", "k", b"evil"),
        secret_key(public.read_bytes()).seal("object", "k", b"e"),
    ):
        with pytest.raises(BadEntryError):
            reader.levels[0].keys[0].open("object", "k", forged)
    private.chmod(0o644)
    with pytest.raises(InvalidRequest, match="chmod 600"):
        read_keys(str(private))
