"""A store in Redis, Valkey, or another server with the same protocol."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rtcompile.store.shared import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    Claim,
    errors_of_stores,
    without_password,
)

_ABANDONED = b"abandoned"
_RENEW = (
    "if redis.call('get', KEYS[1]) == ARGV[1] then "
    "return redis.call('set', KEYS[1], ARGV[2], 'px', ARGV[3]) end"
)
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"
_errors = partial(errors_of_stores, redis.RedisError, OSError, ValueError)


class RedisStore:
    """The client; each method is one command, or one script where a condition is checked first."""

    def __init__(self, address: str, ttl: float) -> None:
        self.name = without_password(address)
        self._ttl = round(ttl)
        self._redis: Any = redis.Redis.from_url(
            address,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
        )

    @_errors()
    def get(self, key: str) -> bytes | None:
        found: bytes | None = self._redis.get(_redis_key(key))
        return found

    @_errors()
    def put(self, key: str, data: bytes) -> None:
        self._redis.set(_redis_key(key), data, ex=self._ttl)

    @_errors()
    def acquire(self, key: str, token: str, seconds: float) -> Claim:
        if self._redis.set(_redis_key(key), token, nx=True, px=round(seconds * 1000)):
            return "ours"
        return "abandoned" if self._redis.get(_redis_key(key)) == _ABANDONED else "another's"

    @_errors()
    def renew(self, key: str, token: str, seconds: float, *, abandon: bool = False) -> None:
        left = _ABANDONED if abandon else token
        self._redis.eval(_RENEW, 1, _redis_key(key), token, left, round(seconds * 1000))

    @_errors()
    def release(self, key: str, token: str) -> None:
        self._redis.eval(_RELEASE, 1, _redis_key(key), token)

    @_errors()
    def delete(self, key: str) -> None:
        self._redis.delete(_redis_key(key))

    def listing(self, kind: str) -> Iterator[tuple[str, int]]:
        with _errors():
            for key in self._redis.scan_iter(match=_redis_key(f"{kind}/*"), count=1000):
                yield key.decode().partition("/")[2], self._redis.strlen(key)

    @_errors()
    def clock(self, key: str) -> float:  # noqa: ARG002  # the port's signature
        seconds, microseconds = self._redis.time()
        return float(seconds + microseconds / 1e6)


def _redis_key(key: str) -> str:
    return f"rtcompile:{key}"
