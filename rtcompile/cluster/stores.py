"""What a shared store does: it keeps bytes under text keys, and may give leases.

`StoreError` is the only error that the methods raise. `breaker.Tier` limits the time of each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol
from urllib.parse import urlsplit

CONNECT_SECONDS = 0.25
ANSWER_SECONDS = 0.75

# What becomes of a wish to build: the lease is ours; another process has it, and its result is to be
# waited for; or it had it and shares no result, so everybody builds.
Claim = Literal["ours", "another's", "abandoned"]


class StoreError(Exception):
    """The store failed, or did not answer in time."""


class LeasesUnsupportedError(StoreError):
    """The store ignores the condition "only if absent", so it cannot give leases."""


class SharedStore(Protocol):
    """The interface of a store. `name` is its address without a password."""

    name: str

    def get(self, key: str) -> bytes | None:
        """Return what is under `key`, None if there is nothing."""

    def put(self, key: str, data: bytes) -> None:
        """Keep `data` under `key`."""

    def acquire(self, key: str, token: str, seconds: float) -> Claim:
        """Take the lease `key` for some seconds, unless another process has or abandoned it."""

    def renew(self, key: str, token: str, seconds: float, *, abandon: bool = False) -> None:
        """Extend the lease by some seconds, for which nobody waits for its holder that did `abandon` it.

        Nothing is done unless `token` still holds it.
        """

    def release(self, key: str, token: str) -> None:
        """Release the lease, if `token` still holds it."""

    def delete(self, key: str) -> None:
        """Remove what is under `key`, if anything is."""

    def listing(self, kind: str) -> Iterator[tuple[str, int]]:
        """Yield name and size of what is under ``kind/name``."""

    def clock(self, key: str) -> float:
        """Return the store's time, in seconds since the epoch; `key` was written just now."""


# --- leases in stores that have none of their own: an object that only one client can create -------


def encode_lease(token: str, seconds: float) -> bytes:
    """Return what a lease's object holds: who has it, "" if it was abandoned, and until when."""
    return json.dumps({"token": token, "until": time.time() + seconds}).encode()


def holder(held: bytes | None) -> str | None:
    """Return who has a lease, "" if it was abandoned, None if nobody has it or it is damaged."""
    return _decoded(held)[0]


def has_expired(held: bytes) -> bool:
    """Say whether a lease ended by itself, as one that is damaged does at once."""
    return _decoded(held)[1] < time.time()


def _decoded(held: bytes | None) -> tuple[str | None, float]:
    try:
        found = json.loads(held or b"{}")
        return str(found["token"]), float(found["until"])
    except (ValueError, KeyError, TypeError):
        return None, 0.0


@contextmanager
def errors_of_stores(*types: type[Exception]) -> Iterator[None]:
    """Raise `StoreError` for errors of these types; it serves as a decorator too."""
    try:
        yield
    except StoreError:
        raise
    except types as error:
        raise StoreError(first_line(error)) from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type's name."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def without_password(address: str) -> str:
    """Return an address for messages, without its password and without options, which may hold one."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
