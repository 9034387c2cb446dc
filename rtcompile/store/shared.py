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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Literal, NamedTuple, Protocol, runtime_checkable
from urllib.parse import urlsplit

from rtcompile.errors import InvalidRequest
from rtcompile.request.values import one_of
from rtcompile.settings import flag, seconds

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
    """What a client of a shared store has; any error that a method raises is a failure of the store.

    A package adds a store by an entry point in the group ``rtcompile.stores``, named for the scheme of
    the address: a function of the address and the settings (``.ttl`` in seconds, ``.mode``).

    Attributes
    ----------
    name : str
        What messages call it: its address without a password.

    Examples
    --------
    >>> class Store:
    ...     def __init__(self, address, settings):
    ...         self.name, self._kept = address, {}
    ...
    ...     def get(self, key):
    ...         return self._kept.get(key)
    ...
    ...     def put(self, key, data):
    ...         self._kept[key] = data
    """

    name: str

    def get(self, key: str) -> bytes | None:
        """Return what is under `key`, None if there is nothing."""

    def put(self, key: str, data: bytes) -> None:
        """Keep `data` under `key`."""


@runtime_checkable
class LeasingStore(SharedStore, Protocol):
    """What a store may do besides, so that one node builds while the others wait for its result."""

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
    scheme, mark, rest = address.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return scheme + mark + host.rpartition("@")[2] + slash + path


# --- The settings of the environment, and the client for each address ------------------------------

_MODES = ("rw", "ro", "anonymous")
_TTL_SECONDS = 30 * 86400.0
_MIN_SECONDS = 0.05


class RemoteSettings(NamedTuple):
    """The shared stores, in the order in which they are asked, and how they are used."""

    addresses: tuple[str, ...]
    mode: str = "rw"  # "rw", "ro", or "anonymous": read-only without credentials
    key_file: str = ""  # the file with the team's key; empty if entries are not signed
    unsigned: bool = False  # whether entries without a signature are accepted
    ttl: float = _TTL_SECONDS  # seconds after which Redis may drop an entry
    min_seconds: float = _MIN_SECONDS  # builds that took less time are not written
    # Whether files in a ``file://`` store are the group's to read and to replace.
    group: bool = False

    @property
    def shares_nothing(self) -> str:
        """Why ``RTCOMPILE_CACHE_SHARED=1`` does nothing here; ``""`` if it does, or is not set."""
        if not self.group or any(address.startswith("file:") for address in self.addresses):
            return ""
        return (
            "RTCOMPILE_CACHE_SHARED=1 is for a file:// store, and RTCOMPILE_REMOTE names none. The "
            "folder of RTCOMPILE_CACHE_DIR is always one user's alone; what users share lies in "
            "RTCOMPILE_REMOTE=file:///shared/folder"
        )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> RemoteSettings:
        """Read them; raise `InvalidRequest` naming a variable that cannot be used."""
        env = os.environ if environ is None else environ
        addresses = [text.strip() for text in env.get("RTCOMPILE_REMOTE", "").split(",")]
        key_file = env.get("RTCOMPILE_REMOTE_KEY_FILE", "")
        ttl, least = "RTCOMPILE_REMOTE_TTL", "RTCOMPILE_REMOTE_MIN_SECONDS"
        found = cls(
            addresses=tuple(filter(None, addresses)),
            mode=one_of("RTCOMPILE_REMOTE_MODE", env.get("RTCOMPILE_REMOTE_MODE") or "rw", _MODES),
            key_file=os.path.expanduser(key_file),
            unsigned=flag(env, "RTCOMPILE_REMOTE_UNSIGNED", False),
            ttl=seconds(ttl, env.get(ttl)) or _TTL_SECONDS,
            min_seconds=_or_zero(least, env.get(least)),
            group=flag(env, "RTCOMPILE_CACHE_SHARED", False),
        )
        if found.addresses and not (found.key_file or found.unsigned):
            raise InvalidRequest(
                "RTCOMPILE_REMOTE is set and RTCOMPILE_REMOTE_KEY_FILE is not: without a key anybody "
                "who can write to the store can make code that runs here. Make one with `openssl "
                "rand -hex 32 > key && chmod 600 key`, the same for all of the team, or set "
                "RTCOMPILE_REMOTE_UNSIGNED=1 where everybody who reaches the store is trusted"
            )
        return found


def _or_zero(name: str, said: str | None) -> float:
    if said is not None and said.strip("0.") == "" and "0" in said:
        return 0.0
    found = seconds(name, said)
    return _MIN_SECONDS if found is None else found


def open_store(address: str, settings: RemoteSettings | None = None) -> SharedStore:
    """Return the client for an address; it connects when it is first used.

    Clients for other schemes than ours are entry points in the group ``rtcompile.stores``: functions of
    the address and the `RemoteSettings`.
    """
    from rtcompile import _STORES

    scheme = urlsplit(address).scheme
    shown = f"RTCOMPILE_REMOTE={without_password(address)}"
    entries = {scheme: EntryPoint(scheme, _STORES[scheme], "")} if scheme in _STORES else _entries()
    if scheme not in entries:
        known = ", ".join(f"{name}://" for name in sorted({*_STORES, *entries}))
        raise InvalidRequest(
            f"{shown}: an address begins with {known}; a package adds another scheme by an entry "
            "point in the group rtcompile.stores"
        )
    try:
        store: SharedStore = entries[scheme].load()(address, settings or RemoteSettings((address,)))
    except Exception as error:  # noqa: BLE001  # a company's own store may raise anything
        raise InvalidRequest(f"{shown}: {first_line(error)}") from None
    return store


def listing(store: SharedStore, kind: str) -> Iterator[tuple[str, int]]:
    """Yield name and size of a store's entries, if it can list them."""
    if not hasattr(store, "listing"):
        raise StoreError("it cannot list what it contains")
    yield from store.listing(kind)


def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group="rtcompile.stores")}


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
