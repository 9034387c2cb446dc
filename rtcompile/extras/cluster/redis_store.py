"""A store in Redis, Valkey, or a server with the same protocol; `level` pauses it if it does not respond."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rtcompile.extras.cluster.entries import (
    CONNECT_SECONDS,
    LEASE_SECONDS,
    REPLY_SECONDS,
    BadEntryError,
    RemoteSettings,
    StoreError,
    kind_of,
    most_bytes,
    without_password,
)
from rtcompile.named import computed_once

# The parameters of redis-py by which a connection tells its client's name and version.
_GREETINGS = ["driver_info"] if find_spec("redis.driver_info") else ["lib_name", "lib_version"]


class RedisStore:
    """The client; each method is one round trip."""

    def __init__(self, address: str, settings: RemoteSettings) -> None:
        self.name = without_password(address)
        # A cluster's client may try several servers in turn, so a request may take longer than one limit.
        self.limits_time = "+" not in urlsplit(address).scheme
        self._ttl, self._renews = settings.ttl, settings.mode == "rw"
        self._address = address
        if self.limits_time:
            _ = self._redis  # raises now for a wrong address; a cluster's client would connect here

    @computed_once
    def _redis(self) -> Any:
        options: dict[str, Any] = {
            "socket_connect_timeout": CONNECT_SECONDS,
            "socket_timeout": REPLY_SECONDS,
            "retry": Retry(NoBackoff(), 0),
            # Without HELLO, which old servers do not know, connecting needs no round trips.
            "protocol": 2,
            **dict.fromkeys(_GREETINGS),
        }
        scheme, _, rest = self._address.partition("://")
        # Valkey speaks the same protocol.
        plain = f"{scheme.removesuffix('+cluster').replace('valkey', 'redis')}://{rest}"
        if scheme.endswith("+cluster"):
            from redis.cluster import RedisCluster

            return RedisCluster.from_url(plain, **options)
        return redis.Redis.from_url(plain, **options, retry_on_error=[])

    def get(self, key: str) -> bytes | None:
        """Return a value, of limited size; unless the store is only read, its time to live begins anew."""
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.getrange(_redis_key(key), 0, most_bytes(key))
            if self._renews and kind_of(key) != "lease":
                pipe.pexpire(_redis_key(key), self._milliseconds(key))
            return _entry(key, pipe.execute(raise_on_error=False)[0])

    def put(self, key: str, data: bytes) -> None:
        self._redis.set(_redis_key(key), data, px=self._milliseconds(key))

    def create(self, key: str, data: bytes) -> bool:
        return bool(self._redis.set(_redis_key(key), data, px=self._milliseconds(key), nx=True))

    def _milliseconds(self, key: str) -> int:
        """Return after how long the server removes an entry."""
        return round(1000 * (LEASE_SECONDS if kind_of(key) == "lease" else self._ttl))


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
