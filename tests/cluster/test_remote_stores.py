"""Shared stores as clients see them: bytes, leases, signatures, and what goes wrong."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("zstandard")

from rtcompile.errors import InvalidRequest, RtcompileWarning
from rtcompile.store import shared as stores
from rtcompile.store.remote import Lease, Remote
from rtcompile.store.shared import (
    BadEntryError,
    Envelope,
    RemoteSettings,
    SharedStore,
    StoreError,
    open_store,
    read_key,
)
from tests import servers

KEY = b"0123456789abcdef0123456789abcdef"


@contextlib.contextmanager
def folder(tmp_path: Path) -> Iterator[str]:
    yield f"file://{tmp_path}/shared"


@contextlib.contextmanager
def redis(tmp_path: Path) -> Iterator[str]:
    with servers.redis() as server:
        yield server.address


@pytest.fixture(
    params=[folder, pytest.param(redis, marks=pytest.mark.needs_redis)],
    ids=lambda make: make.__name__,
)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with request.param(tmp_path) as found:
        yield found


@pytest.fixture
def store(address: str) -> SharedStore:
    return open_store(address)


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return str(path)


def test_what_was_put_is_got(store: SharedStore):
    store.put("object/abc", b"\x00bytes\xff" * 1000)

    assert store.get("object/abc") == b"\x00bytes\xff" * 1000
    assert store.get("object/abd") is None


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


@pytest.mark.needs_redis
def test_redis_forgets_an_entry_after_its_time():
    with servers.redis() as server:
        store = open_store(server.address, RemoteSettings((), ttl=60.0))
        store.put("object/abc", b"bytes")
        assert 0 < store._redis.ttl("rtcompile:object/abc") <= 60


@pytest.mark.needs_redis
def test_redis_is_reached_by_tls_and_by_a_socket(tmp_path):
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    certificate = ["-keyout", f"{tmp_path}/key.pem", "-out", f"{tmp_path}/cert.pem"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    request = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", *certificate, *names]
    subprocess.run(request, check=True, capture_output=True)
    port = servers.free_port()
    options = {
        "--tls-port": str(port),
        "--tls-cert-file": f"{tmp_path}/cert.pem",
        "--tls-key-file": f"{tmp_path}/key.pem",
        "--tls-auth-clients": "no",
        "--unixsocket": f"{tmp_path}/socket",
    }
    with servers.redis(*(word for pair in options.items() for word in pair)):
        deadline = time.monotonic() + 30.0
        while not (servers.answers(port) and os.path.exists(f"{tmp_path}/socket")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        address = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tmp_path}/cert.pem"
        open_store(address).put("object/abc", b"bytes")
        assert open_store(f"unix://{tmp_path}/socket").get("object/abc") == b"bytes"
        with pytest.raises(StoreError, match=r"(?i)certificate"):
            open_store(f"rediss://127.0.0.1:{port}/0").get("object/abc")


@pytest.mark.takes_seconds
@pytest.mark.parametrize(
    "address", ["redis://:secret@h:1/0", "redis://me:secret@h:1/0", "redis://h:1/0?password=secret"]
)
def test_no_message_shows_a_password(address):
    assert open_store(address).name == "redis://h:1/0"


# --- signatures ----------------------------------------------------------------------------------


def test_nothing_that_was_tampered_with_is_opened():
    envelope = Envelope(KEY)
    entry = envelope.seal("object", "k1", b"code" * 100)
    chance = random.Random(5)
    accepted = 0
    for _ in range(2000):
        bad = bytearray(entry)
        bad[chance.randrange(len(bad))] ^= 1 << chance.randrange(8)
        with contextlib.suppress(BadEntryError):
            envelope.open("object", "k1", bytes(bad))
            accepted += 1
    for kind, key, data in [
        ("object", "k2", entry),
        ("manifest", "k1", entry),
        ("object", "k1", entry[:-1]),
        ("object", "k1", b""),
        ("object", "k1", Envelope(KEY[::-1]).seal("object", "k1", b"code")),
        ("object", "k1", Envelope(None).seal("object", "k1", b"code")),
    ]:
        with pytest.raises(BadEntryError):
            envelope.open(kind, key, data)
    assert accepted == 0
    assert envelope.open("object", "k1", entry) == b"code" * 100


@pytest.mark.parametrize("states_its_size", [True, False])
@pytest.mark.parametrize("kind", ["object", "manifest"])
def test_an_entry_is_not_decompressed_to_more_than_its_kind_can_have(
    kind, states_its_size, monkeypatch
):
    import zstandard

    monkeypatch.setitem(stores.MOST_BYTES, kind, 1000)
    compressor = zstandard.ZstdCompressor(write_content_size=states_its_size)
    envelope = Envelope(KEY)
    bomb = compressor.compress(bytes(1001 if states_its_size else 1000))
    entry = stores._MAGIC + envelope._mac(kind, "k", bomb) + bomb

    with pytest.raises(BadEntryError, match="larger than any"):
        envelope.open(kind, "k", entry)
    assert envelope.open(kind, "k", envelope.seal(kind, "k", bytes(1000))) == bytes(1000)


def test_what_no_node_would_take_is_not_written(address, monkeypatch):
    monkeypatch.setitem(stores.MOST_BYTES, "object", 1000)
    remote = Remote(RemoteSettings((address,), unsigned=True))

    assert not remote.put(remote.tiers[0], [("object", "k", bytes(1001))])
    assert remote.tiers[0].store.get("object/k") is None
    assert remote.put(remote.tiers[0], [("object", "k", bytes(1000))])


@pytest.mark.parametrize(
    ("mode", "data", "what"),
    [
        pytest.param(0o644, KEY, "chmod 600", id="readable by others"),
        pytest.param(0o600, b"short", "at least 16 bytes", id="short"),
        pytest.param(None, b"", "No such file", id="not there"),
    ],
)
def test_a_key_file_that_is_no_secret_is_refused(tmp_path, mode, data, what):
    path = tmp_path / "key"
    if mode is not None:
        path.write_bytes(data)
        path.chmod(mode)

    with pytest.raises(InvalidRequest, match=what):
        read_key(str(path))


@pytest.mark.skipif(os.getuid() != 0, reason="only root has files of root's")
def test_a_key_file_of_roots_may_be_the_groups_to_read(tmp_path, monkeypatch):
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o440)
    with pytest.raises(InvalidRequest, match="chmod 600"):
        read_key(str(path))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    assert read_key(str(path)) == KEY


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_key_file_of_another_users_is_refused(key_file, monkeypatch):
    os.chown(key_file, 1234, 1234)
    with pytest.raises(InvalidRequest, match="belongs to user 1234, neither to 0"):
        read_key(key_file)
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    assert read_key(key_file) == KEY


# --- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "what"),
    [
        pytest.param({"RTCOMPILE_REMOTE": "redis://h"}, "KEY_FILE is not", id="no key"),
        pytest.param(
            {"RTCOMPILE_REMOTE": "ftp://h/x", "RTCOMPILE_REMOTE_UNSIGNED": "1"},
            "an address begins with",
            id="unknown scheme",
        ),
        pytest.param(
            {"RTCOMPILE_REMOTE": "file://x/y", "RTCOMPILE_REMOTE_UNSIGNED": "1"},
            "file:///absolute",
            id="relative folder",
        ),
        pytest.param(
            {
                "RTCOMPILE_REMOTE": "file:///x",
                "RTCOMPILE_REMOTE_UNSIGNED": "1",
                "RTCOMPILE_REMOTE_MODE": "w",
            },
            "RTCOMPILE_REMOTE_MODE must be one of",
            id="mode",
        ),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(environ, what):
    with pytest.raises(InvalidRequest, match=what):
        Remote(RemoteSettings.from_environ(environ))


def test_a_missing_client_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.delitem(sys.modules, "rtcompile.extras.cluster.redis_store", raising=False)

    with pytest.raises(InvalidRequest, match=r"rtcompile\[redis\]") as caught:
        Remote(RemoteSettings(("redis://user:secret@h:1/0",), unsigned=True))
    assert "secret" not in str(caught.value)


# --- what goes wrong -------------------------------------------------------------------------------


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


def remote(address: str, key_file: str, **more: object) -> Remote:
    return Remote(RemoteSettings((address,), key_file=key_file, **more))  # type: ignore[arg-type]


def pushed(stores: Remote, *entries: tuple[str, str, bytes]) -> None:
    stores.push(lambda tier: entries, lambda shared: None)
    assert stores.flush(10.0)


def test_what_one_node_pushes_another_gets(address, key_file):
    pushed(remote(address, key_file), ("object", "k", b"code"))

    other = remote(address, key_file)
    assert other.get("object", "k") == b"code"
    assert other.get("object", "another") is None
    assert other.tiers[0].hits == 1


def test_an_entry_of_another_key_is_not_used(address, key_file, tmp_path):
    stores = remote(address, key_file)
    pushed(stores, ("object", "k", b"code"))
    entry = stores.tiers[0].store.get("object/k")
    stores.tiers[0].store.put("object/swapped", entry)

    with pytest.warns(RtcompileWarning, match="RTCOMPILE_REMOTE_KEY_FILE"):
        assert stores.get("object", "swapped") is None
    assert "signature" in stores.tiers[0].problem


@pytest.mark.needs_redis
@pytest.mark.parametrize("harm", ["kill", "pause"])
def test_a_store_that_is_gone_costs_one_warning_and_no_second(key_file, harm):
    with servers.redis() as server:
        stores = remote(server.address, key_file)
        pushed(stores, ("object", "k", b"code"))
        getattr(server, harm)()

        begin = time.monotonic()
        with pytest.warns(RtcompileWarning, match="left alone") as warned:
            found = [stores.get("object", f"k{number}") for number in range(50)]
        seconds = time.monotonic() - begin

    assert found == [None] * 50
    assert len(warned) == 1
    assert seconds < 10.0  # and not the most that is waited for an answer 50 times


@pytest.mark.takes_seconds
def test_a_slow_store_is_left_alone_before_it_took_a_second(key_file, tmp_path, monkeypatch):
    stores = remote(f"file://{tmp_path}/s", key_file)
    asked = []

    def get(key: str) -> None:
        asked.append(key)
        time.sleep(0.3)

    monkeypatch.setattr(stores.tiers[0].store, "get", get)
    with pytest.warns(RtcompileWarning, match="from now on"):
        assert not any(stores.get("object", str(number)) for number in range(50))

    assert 0 < len(asked) * 0.3 < 1.0


@pytest.mark.needs_redis
def test_a_wrong_password_is_said_once_and_not_shown(key_file):
    with servers.redis("--requirepass", servers.SECRET.replace(" ", "-")) as server:
        address = server.address.replace("redis://", "redis://:wrong-password@")
        stores = remote(address, key_file)
        with pytest.warns(RtcompileWarning, match="(?i)password|auth") as warned:
            assert stores.get("object", "k") is None

    assert "wrong-password" not in str(warned[0].message)


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        pytest.param(400, "ExpiredToken", "ExpiredToken", id="expired credentials"),
        pytest.param(301, "PermanentRedirect", "configured region", id="wrong region"),
        pytest.param(400, "AuthorizationHeaderMalformed", "Malformed", id="region not signed for"),
        pytest.param(403, "AccessDenied", "AccessDenied", id="no right"),
        pytest.param(404, "NoSuchBucket", "NoSuchBucket", id="no bucket"),
        pytest.param(404, "ContainerNotFound", "ContainerNotFound", id="no container"),
    ],
)
def test_what_an_object_store_refuses_is_said_once_in_its_words(key_file, status, code, said):
    with servers.s3_that_refuses(status, code) as address:
        stores = remote(address, key_file)
        with pytest.warns(RtcompileWarning, match=f"RTCOMPILE_REMOTE: s3://.*{said}") as warned:
            assert stores.get("object", "k") is None
        pushed(stores, ("object", "k", b"code"))
    assert len(warned) == 1


def test_a_read_only_mode_writes_nothing_and_takes_no_lease(address, key_file):
    stores = remote(address, key_file, mode="ro")

    assert not stores.worth(5000.0)
    assert stores.lease("k", lambda: None) is None


def test_a_full_folder_is_a_warning(key_file, tmp_path, monkeypatch):
    stores = remote(f"file://{tmp_path}/s", key_file)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pushed(stores, ("object", "k", b"code"))

    assert "No space left" in str(caught[0].message)
    assert stores.get("object", "k") is None


def test_who_waits_for_a_lease_gets_what_its_holder_built(address, key_file):
    ours, theirs = remote(address, key_file), remote(address, key_file)
    held = theirs.lease("k", lambda: theirs.get("object", "k"))
    theirs.push(lambda tier: [("object", "k", b"code")], held.end)
    assert ours.lease("k", lambda: ours.get("object", "k")) == b"code"


@pytest.mark.takes_seconds
def test_who_waits_for_a_build_waits_for_slow_answers_too(tmp_path, key_file, monkeypatch):
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
    assert 0.4 < time.monotonic() - begin < 5.0


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


def test_zstandard_is_asked_for_by_name(tmp_path, key_file, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InvalidRequest, match="pip install zstandard"):
        remote(f"file://{tmp_path}/s", key_file)


def test_the_look_up_of_a_hosts_name_is_waited_for_within_bounds(key_file, monkeypatch):
    stores = remote("redis://cache.example:6379/0", key_file)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: time.sleep(5.0))
    begin = time.monotonic()
    with pytest.warns(RtcompileWarning, match="no answer"):
        assert [stores.get("object", str(number)) for number in range(9)] == [None] * 9
    assert time.monotonic() - begin < 20.0  # and not 9 times 5 s


def test_who_has_a_time_limit_waits_no_longer_for_another_node(address, key_file):
    theirs, ours = remote(address, key_file), remote(address, key_file)
    held = theirs.lease("k", lambda: None)

    begin = time.monotonic()
    assert ours.lease("k", lambda: None, 0.3) is None

    assert 0.3 <= time.monotonic() - begin < 30.0  # of the minutes that it is held for
    held.end(True)


def test_a_read_only_folder_is_no_error_to_read(tmp_path):
    store = open_store(f"file://{tmp_path}/nothing")
    assert store.get("object/k") is None
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError):
        open_store(f"file://{tmp_path}/file").put("object/k", b"")
