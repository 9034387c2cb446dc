"""A store in Redis, Valkey, or another server with the same protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from rtcompile.cluster import patience
from rtcompile.cluster.stores import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    Claim,
    StoreError,
    without_password,
)

_T = TypeVar("_T")

_ABANDONED = b"abandoned"
_RENEW = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end"
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"
_ABANDON = (
    "if redis.call('get', KEYS[1]) == ARGV[1] then "
    f"return redis.call('set', KEYS[1], '{_ABANDONED.decode()}', 'px', ARGV[2]) end"
)


class RedisStore:
    """The client; each method is one command, or one script where a condition is checked first."""

    def __init__(self, address: str, ttl: float) -> None:
        self.name = without_password(address)
        self._ttl = round(ttl)
        self._connected = False
        self._redis: Any = redis.Redis.from_url(
            address,
            socket_connect_timeout=CONNECT_SECONDS,
            socket_timeout=ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 0),
            retry_on_error=[],
        )

    def get(self, key: str) -> bytes | None:
        found: bytes | None = self._ask(lambda: self._redis.get(_redis_key(key)))
        return found

    def put(self, key: str, data: bytes) -> None:
        self._ask(lambda: self._redis.set(_redis_key(key), data, ex=self._ttl))

    def acquire(self, key: str, token: str, seconds: float) -> Claim:
        place, milliseconds = _redis_key(key), round(seconds * 1000)
        if self._ask(lambda: self._redis.set(place, token, nx=True, px=milliseconds)):
            return "ours"
        held = self._ask(lambda: self._redis.get(place))
        return "abandoned" if held == _ABANDONED else "another's"

    def renew(self, key: str, token: str, seconds: float) -> None:
        self._run(_RENEW, key, token, round(seconds * 1000))

    def release(self, key: str, token: str) -> None:
        self._run(_RELEASE, key, token)

    def abandon(self, key: str, token: str, seconds: float) -> None:
        self._run(_ABANDON, key, token, round(seconds * 1000))

    def delete(self, key: str) -> None:
        self._ask(lambda: self._redis.delete(_redis_key(key)))

    def listing(self, kind: str) -> Iterator[tuple[str, int]]:
        pattern = _redis_key(f"{kind}/*")
        found: Iterator[bytes] = self._redis.scan_iter(match=pattern, count=1000)
        while (key := self._ask(lambda: next(found, None))) is not None:
            yield key.decode().partition("/")[2], self._ask(partial(self._redis.strlen, key))

    def clock(self, key: str) -> float:
        seconds, microseconds = self._ask(lambda: self._redis.time())
        return float(seconds + microseconds / 1e6)

    def _run(self, script: str, key: str, *arguments: object) -> None:
        self._ask(lambda: self._redis.eval(script, 1, _redis_key(key), *arguments))

    def _ask(self, ask: Callable[[], _T]) -> _T:
        try:
            # The client's limits are for sockets. The look-up of a host's name has none.
            answer = ask() if self._connected else patience.within(ANSWER_SECONDS, ask)
        except (redis.RedisError, OSError, ValueError, patience.Unanswered) as error:
            self._connected = False
            raise StoreError(str(error) or type(error).__name__) from None
        self._connected = True
        return answer


def _redis_key(key: str) -> str:
    return f"rtcompile:{key}"
