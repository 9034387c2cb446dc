"""What a shared store does, how long builds wait for it, and how its entries are signed.

`StoreError` is the only error that the methods raise. `breaker.Tier` limits the time of each.

A cubin is code that will run, so its origin has to be checked. The signature covers the entry's
kind and key, so no entry can replace another. Nothing is decompressed, decoded or loaded
before the signature is verified.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol
from urllib.parse import urlsplit

from rtcompile.errors import InvalidRequest

# --- What a shared store does: it keeps bytes under text keys, and may give leases ----------------

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


# --- Entries of shared stores: compressed, and signed with the team's key -------------------------

_MAGIC = b"rtcompile entry 1\n"
_MAC_BYTES = 32
_UNSIGNED = bytes(_MAC_BYTES)
# The bytes that one decompressed entry may have. An entry has to state its size, and only so many
# bytes are decompressed: otherwise a few kilobytes in a store could fill a node's memory.
MOST_BYTES = {"object": 256 << 20, "manifest": 16 << 20}
_LEAST_KEY_BYTES = 16


class BadEntryError(Exception):
    """An entry is damaged, has another signature, or belongs to another key."""


class Envelope:
    """Signs entries, unless it has no key, and compresses them; and opens them again."""

    def __init__(self, key: bytes | None) -> None:
        self._key = key

    def seal(self, kind: str, key: str, data: bytes) -> bytes:
        """Return the entry of `data`, a `kind` ("object", "manifest") under `key`."""
        import zstandard

        body: bytes = zstandard.ZstdCompressor(level=3, write_content_size=True).compress(data)
        return _MAGIC + self._mac(kind, key, body) + body

    def open(self, kind: str, key: str, entry: bytes) -> bytes:
        """Return what was sealed; raise `BadEntryError` for anything else."""
        head = len(_MAGIC) + _MAC_BYTES
        if entry[: len(_MAGIC)] != _MAGIC or len(entry) <= head:
            raise BadEntryError("it is no entry of this version of rtcompile")
        mac, body = entry[len(_MAGIC) : head], entry[head:]
        if not hmac.compare_digest(mac, self._mac(kind, key, body)):
            raise BadEntryError("its signature is not of this team's key")
        import zstandard

        try:
            if not 0 <= zstandard.frame_content_size(body) <= MOST_BYTES[kind]:
                raise BadEntryError(
                    f"it is larger than any {kind}, or does not say how large it is"
                )
            return bytes(zstandard.ZstdDecompressor().decompress(body))
        except zstandard.ZstdError as error:
            raise BadEntryError(str(error)) from None

    def _mac(self, kind: str, key: str, body: bytes) -> bytes:
        if self._key is None:
            return _UNSIGNED
        signed = b"".join(b"%d:%s" % (len(part), part) for part in (kind.encode(), key.encode()))
        return hmac.digest(self._key, _MAGIC + signed + body, hashlib.sha256)


def read_key(path: str) -> bytes:
    """Return the team's key from its file, which others must not be able to read."""
    setting = f"RTCOMPILE_REMOTE_KEY_FILE={path}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InvalidRequest(f"{setting}: {error.strerror}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidRequest(f"{setting}: this is no file")
        us = os.getuid()
        if status.st_uid not in (0, us):
            raise InvalidRequest(
                f"{setting}: it belongs to user {status.st_uid}, neither to {us} nor to root, and who "
                f"has the key can make code that is run here; copy it: `install -m 600 {path} KEY`"
            )
        # Root's, and readable by our group: how Kubernetes gives a secret to a pod.
        roots = status.st_uid == 0 and us != 0
        if status.st_mode & (0o037 if roots else 0o077):
            mode = stat.S_IMODE(status.st_mode)
            raise InvalidRequest(
                f"{setting}: others may read or write it (mode {mode:04o}), and who has the key can "
                f"make code that is run here; `chmod 600 {path}`"
            )
        key = os.read(descriptor, 1 << 16).strip()
    finally:
        os.close(descriptor)
    if len(key) < _LEAST_KEY_BYTES:
        raise InvalidRequest(
            f"{setting}: a key has at least {_LEAST_KEY_BYTES} bytes, this one has {len(key)}; "
            f"`openssl rand -hex 32 > {path}` makes one"
        )
    return key
