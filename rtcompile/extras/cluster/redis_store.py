"""A store in Redis, Valkey, or a server with the same protocol; `level` pauses it if it does not respond."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rtcompile.extras.cluster.entries import most_bytes
from rtcompile.extras.cluster.settings import (
    CONNECT_SECONDS,
    REPLY_SECONDS,
    RemoteSettings,
    without_password,
)
from rtcompile.store.shared import BadEntryError, StoreError

# Keep a value, or nothing, where another value lies.
_REPLACE = (
    "if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end "
    "if ARGV[2] == '' then redis.call('del', KEYS[1]) "
    "else redis.call('set', KEYS[1], ARGV[2], 'px', ARGV[3]) end return 1"
)
# The parameters of redis-py by which a connection tells its client's name and version.
_GREETINGS = ["driver_info"] if find_spec("redis.driver_info") else ["lib_name", "lib_version"]


_IDLE_SECONDS = 5.0  # after which connections are closed: a server takes 10,000 by default
_OPTIONS: dict[str, Any] = {
    "socket_connect_timeout": CONNECT_SECONDS,
    "socket_timeout": REPLY_SECONDS,
    # Without HELLO, which old servers do not know, connecting needs no round trips.
    "protocol": 2,
    **dict.fromkeys(_GREETINGS),
}
_ALONE: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "retry_on_error": []}


def _client(address: str) -> Any:
    """Return the client of a server, of a cluster, or of the master that sentinels name."""
    parts = urlsplit(address)
    tls = parts.scheme.startswith("rediss")
    if "+" not in parts.scheme:
        # Valkey speaks the same protocol.
        plain = address.replace("valkey", "redis", 1) if address.startswith("valkey") else address
        return redis.Redis.from_url(plain, **_OPTIONS, **_ALONE)
    if parts.scheme.endswith("+cluster"):
        from redis.cluster import RedisCluster

        plain = address.replace("+cluster", "", 1)
        return RedisCluster.from_url(plain, **_OPTIONS, retry=_ALONE["retry"])
    from redis.sentinel import MasterNotFoundError, Sentinel

    # redis+sentinel://:PASSWORD@host:26379,host:26379/master/0?ssl_ca_certs=…
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    master, _, db = parts.path.strip("/").partition("/")
    pairs = [host.rpartition(":") for host in hosts.split(",")]
    given = {name: values[0] for name, values in parse_qs(parts.query).items()}
    options = {**_OPTIONS, **_ALONE, **given, "db": int(db or 0), "ssl": tls}
    options |= {"username": unquote(user) or None, "password": unquote(password) or None}
    plain_options = {**_OPTIONS, **{name: given[name] for name in given if tls}}
    nodes = [(host or port, int(port) if host else 26379) for host, _, port in pairs]

    sentinels = Sentinel(nodes, sentinel_kwargs={**plain_options, "ssl": tls})
    discover = sentinels.discover_master

    def discover_master(name: str) -> Any:
        try:
            return discover(name)
        except MasterNotFoundError:  # its text shows each client in full
            raise StoreError(f"no sentinel of {hosts} knows the master {name!r}") from None

    sentinels.discover_master = discover_master
    return sentinels.master_for(master, **options)


class RedisStore:
    """The client; each method is one command, or one script where a condition is checked first."""

    def __init__(self, address: str, settings: RemoteSettings) -> None:
        self.name = without_password(address)
        # The clients of clusters and sentinels may try several servers, one after the other.
        self.limits_time = "+" not in urlsplit(address).scheme
        self._ttl, self._renews = round(settings.ttl), settings.mode == "rw"
        self._guard = threading.Lock()
        self._used_at = 0.0
        self._is_watched = False  # whether a timer is to close idle connections
        self._address = address
        # The clients of clusters and sentinels connect when they are constructed.
        self._client: Any = _client(address) if self.limits_time else None

    @property
    def _redis(self) -> Any:
        """The client, whose connections are closed after some idle seconds."""
        with self._guard:
            if self._client is None:
                self._client = _client(self._address)
            self._used_at = time.monotonic()
            if not self._is_watched:
                self._watch()
            return self._client

    def _watch(self) -> None:
        timer = threading.Timer(_IDLE_SECONDS, self._close_idle)
        timer.daemon = True
        with suppress(RuntimeError):  # no thread can be started at the process's end
            timer.start()
            self._is_watched = True

    def _close_idle(self) -> None:
        with self._guard:
            self._is_watched = False
            if time.monotonic() - self._used_at < _IDLE_SECONDS - 0.1:
                self._watch()
            else:
                client = self._client
                nodes = client.get_nodes() if hasattr(client, "get_nodes") else ()
                for each in [node.redis_connection for node in nodes] or [client]:
                    if each is not None:  # a node of a cluster that was not queried
                        each.connection_pool.disconnect(inuse_connections=False)

    def get(self, key: str) -> bytes | None:
        return _entry(key, self._read([key])[0])

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Return what is under each key, in one request; None for an entry that cannot be used."""
        found: list[bytes | None] = []
        for key, reply in zip(keys, self._read(keys), strict=True):
            try:
                found.append(_entry(key, reply))
            except BadEntryError:
                found.append(None)
        return found

    def _read(self, keys: Sequence[str]) -> list[object]:
        """Read as many bytes as entries may have; one that is used expires as late as a new one."""
        with self._redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.getrange(_redis_key(key), 0, most_bytes(key))
            for key in keys if self._renews else ():
                if "/lease/" not in key:
                    pipe.expire(_redis_key(key), self._ttl)
            replies: list[object] = pipe.execute(raise_on_error=False)
        return replies[: len(keys)]

    def put(self, key: str, data: bytes) -> None:
        self._redis.set(_redis_key(key), data, ex=self._ttl)

    def create(self, key: str, data: bytes, seconds: float) -> bool:
        return bool(self._redis.set(_redis_key(key), data, nx=True, px=round(seconds * 1000)))

    def replace(self, key: str, before: bytes, data: bytes | None, seconds: float) -> bool:
        arguments = (before, data or b"", round(seconds * 1000))
        return bool(self._redis.eval(_REPLACE, 1, _redis_key(key), *arguments) == 1)

    def clock(self, key: str) -> float:  # noqa: ARG002  # the port's signature
        reply = self._redis.time()
        # Each node of a cluster replies.
        seconds, microseconds = next(iter(reply.values())) if isinstance(reply, dict) else reply
        return float(seconds + microseconds / 1e6)


def _redis_key(key: str) -> str:
    return f"rtcompile:{key}"


def _entry(key: str, reply: object) -> bytes | None:
    if isinstance(reply, redis.ResponseError) and "WRONGTYPE" in str(reply):
        raise BadEntryError(f"{key}: {reply}")
    if isinstance(reply, redis.exceptions.MovedError):
        raise StoreError(
            "it is a node of a Redis Cluster; write redis+cluster:// in RTCOMPILE_REMOTE"
        )
    if isinstance(reply, Exception):
        raise reply
    if not isinstance(reply, bytes):
        raise BadEntryError(f"{key}: the server returned {type(reply).__name__}")
    if len(reply) > most_bytes(key):
        raise BadEntryError(f"{key}: it has more than {most_bytes(key)} bytes")
    return reply or None
