"""Shared stores' interface, settings and entries, which are compressed, and signed with one of the team's keys.

A cubin is code that will run, so its origin has to be checked. The signature covers the entry's kind and key, so no
entry can replace another. The signature is verified before anything is decompressed, decoded or loaded, and it
limits the decompressed size.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import EntryPoint
from typing import Any, Protocol
from urllib.parse import urlsplit

from rtcompile.errors import InvalidRequest
from rtcompile.files import sealed
from rtcompile.named import NamedTuple
from rtcompile.request.values import one_of
from rtcompile.settings import flag, seconds

# --- the clients' interface ---------------------------------------------------------------------


class StoreError(Exception):
    """The store failed, or did not respond in time."""


class BadEntryError(Exception):
    """An entry is damaged, too large, of another key, or cannot be read; others may be intact."""


class LeasesUnsupportedError(StoreError):
    """The store ignores the condition "only if absent", so it supports no leases."""


class SharedStore(Protocol):
    """A shared store's client; any exception of a method counts as a failure of the store."""

    name: str  # in messages: the address without a password
    limits_time: (
        bool  # whether it limits the time of each request itself; otherwise a thread makes it
    )

    def get(self, key: str) -> bytes | None:
        """Return the value of `key`, or None."""

    def put(self, key: str, data: bytes) -> None:
        """Keep `data` under `key`."""

    def create(self, key: str, data: bytes) -> bool:
        """Keep `data` if `key` is absent, and return whether it was."""


# --- settings -----------------------------------------------------------------------------------

# A client's own limits, for connecting and for each reply.
CONNECT_SECONDS = 0.5
REPLY_SECONDS = 0.75
LEASE_SECONDS = 5.0  # for which a lease is valid after it was last written

_REDIS = "redis rediss unix valkey valkeys redis+cluster rediss+cluster"
_CLIENTS = {
    "file": "folder_store:FolderStore",
    **dict.fromkeys(_REDIS.split(), "redis_store:RedisStore"),
    **dict.fromkeys(["s3", "gs", "az", "http", "https"], "cloud_store:CloudStore"),
}

_MODES = ("rw", "ro", "anonymous")
_TTL_SECONDS = 30 * 86400.0


class RemoteSettings(NamedTuple):
    """The shared stores in the order of queries, and their settings."""

    addresses: tuple[str, ...]
    mode: str = "rw"  # "rw", "ro", or "anonymous": read-only without credentials
    key_file: str = ""  # the file with the team's key; empty if entries are not signed
    ttl: float = _TTL_SECONDS  # seconds after which Redis may drop an entry

    @classmethod
    def from_environ(cls) -> RemoteSettings:
        """Read the settings; raise `InvalidRequest` naming a variable that cannot be used."""
        env = os.environ
        addresses = [text.strip() for text in env.get("RTCOMPILE_REMOTE", "").split(",")]
        key_file = env.get("RTCOMPILE_REMOTE_KEY_FILE", "")
        ttl, unsigned = "RTCOMPILE_REMOTE_TTL", "RTCOMPILE_REMOTE_UNSIGNED"
        found = cls(
            addresses=tuple(filter(None, addresses)),
            mode=one_of("RTCOMPILE_REMOTE_MODE", env.get("RTCOMPILE_REMOTE_MODE") or "rw", _MODES),
            key_file=os.path.expanduser(key_file),
            ttl=seconds(ttl, env.get(ttl) or "inf") or _TTL_SECONDS,
        )
        is_unsigned = flag(unsigned, env.get(unsigned) or "0")
        if found.addresses and not (found.key_file or is_unsigned):
            raise InvalidRequest(
                "RTCOMPILE_REMOTE is set and RTCOMPILE_REMOTE_KEY_FILE is not: without a key anybody "
                "who can write to the store can make code that runs here. Make a key with `openssl "
                "rand -hex 32 > key && chmod 600 key`, the same for all of the team, or set "
                "RTCOMPILE_REMOTE_UNSIGNED=1 if everybody who can reach the store is trusted"
            )
        return found


def open_store(address: str, settings: RemoteSettings | None = None) -> SharedStore:
    """Return the client for an address; it connects when it is first used."""
    scheme = urlsplit(address).scheme
    shown = f"RTCOMPILE_REMOTE={without_password(address)}"
    if scheme not in _CLIENTS:
        known = ", ".join(f"{name}://" for name in sorted(_CLIENTS))
        raise InvalidRequest(f"{shown}: an address begins with {known}")
    client = EntryPoint(scheme, f"rtcompile.extras.cluster.{_CLIENTS[scheme]}", "")
    try:
        store: SharedStore = client.load()(address, settings or RemoteSettings((address,)))
    except Exception as error:  # noqa: BLE001  # a client may raise anything
        text = first_line(error)
        if isinstance(error, ModuleNotFoundError):
            text = f"the package {error.name} is not installed; `pip install {error.name}`"
        raise InvalidRequest(f"{shown}: {text}") from None
    return store


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type's name."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def without_password(address: str) -> str:
    """Return an address for messages, without its password and without options, which may contain one."""
    scheme, mark, rest = address.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return scheme + mark + host.rpartition("@")[2] + slash + path


# --- entries ------------------------------------------------------------------------------------

# The largest size of an entry, before and after compression. Both are checked before reading, since otherwise a few
# kilobytes in a store, or one large value, could fill a node's memory.
MOST_BYTES = {"object": 64 << 20, "manifest": 4 << 20, "lease": 4096}
_MOST_OVERHEAD = 4096  # for the signature, and for data that cannot be compressed


def kind_of(store_key: str) -> str:
    """Return an entry's kind, by its store key ``signing key's fingerprint/kind/name``."""
    return store_key.split("/")[-2:][0]


def most_bytes(store_key: str) -> int:
    """Return the largest size of an entry, by its key in a store."""
    return MOST_BYTES.get(kind_of(store_key), _MOST_OVERHEAD) + _MOST_OVERHEAD


_MAGIC = b"rtcompile entry 3\n"
_LEAST_KEY_BYTES = 16
_FINGERPRINT = 16  # hexadecimal digits


class Key(NamedTuple):
    """A key that signs entries, or only verifies them. An entry's store key contains its fingerprint."""

    kind: str
    fingerprint: str
    bytes_of_signature: int
    # Whether the second argument is this key's signature of the first.
    verifies: Callable[[bytes, bytes], bool]
    sign: Callable[[bytes], bytes] | None  # None if it only verifies

    def store_key(self, kind: str, key: str) -> str:
        """Return the key in a store of an entry that this key signs."""
        return f"{self.fingerprint}/{kind}/{key}"

    def seal(self, kind: str, key: str, data: bytes) -> bytes:
        """Return the entry for `data` of a `kind` of `MOST_BYTES`, under `key`: compressed, and signed."""
        import zstandard

        assert self.sign is not None
        body = zstandard.ZstdCompressor(level=3).compress(data)
        return _MAGIC + self.sign(_signed(kind, key, body)) + body

    def open(self, kind: str, key: str, entry: object) -> bytes:
        """Return the data of a sealed entry; raise `BadEntryError` if it is not valid."""
        head = len(_MAGIC) + self.bytes_of_signature
        if not isinstance(entry, bytes):
            raise BadEntryError(f"the store returned {type(entry).__name__}, not bytes")
        if entry[: len(_MAGIC)] != _MAGIC or len(entry) <= head:
            raise BadEntryError("it is no entry of this version of rtcompile")
        body = entry[head:]
        if not self.verifies(_signed(kind, key, body), entry[len(_MAGIC) : head]):
            raise BadEntryError("its signature is not of this team's key")
        import zstandard

        try:
            # -1 means that the size is not stated. Decompressing allocates as many bytes as stated.
            if not 0 <= (size := zstandard.frame_content_size(body)) <= MOST_BYTES[kind]:
                raise BadEntryError(f"it is larger than any {kind}, or does not say its size")
            return bytes(zstandard.ZstdDecompressor().decompress(body, max_output_size=size))
        except zstandard.ZstdError as error:
            raise BadEntryError(str(error)) from None


def _digest(label: bytes, key: bytes) -> str:
    return hashlib.sha256(label + b"\0" + key).hexdigest()[:_FINGERPRINT]


# A placeholder for a key, if everybody who can reach the store is trusted.
UNSIGNED = Key("unsigned", "unsigned", 32, lambda _, found: found == bytes(32), lambda _: bytes(32))


def secret_key(secret: bytes) -> Key:
    """Return the key for the team's shared secret (HMAC-SHA256): readers can also write."""

    def sign(data: bytes) -> bytes:
        return hmac.digest(secret, data, hashlib.sha256)

    def verifies(data: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(signature, sign(data))

    return Key("hmac-sha256", _digest(b"rtcompile key", secret), 32, verifies, sign)


def _pair(pem: bytes, setting: str) -> Key:
    """Return one key of an Ed25519 pair: with the public key one can only read."""
    try:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization as forms
    except ModuleNotFoundError as missing:
        if missing.name != "cryptography":
            raise
        raise InvalidRequest(
            "a key of Ed25519 needs the package cryptography: pip install cryptography"
        ) from None
    public: Any
    private: Any
    sign = None
    try:
        if b"PUBLIC KEY" in pem:
            public = forms.load_pem_public_key(pem)
        else:
            private = forms.load_pem_private_key(pem, None)
            public, sign = private.public_key(), private.sign
        fingerprint = _digest(b"rtcompile public key", public.public_bytes_raw())
    except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm) as error:
        raise InvalidRequest(f"{setting}: this is no key of Ed25519 ({error})") from None

    def verifies(data: bytes, signature: bytes) -> bool:
        with suppress(InvalidSignature):
            public.verify(signature, data)
            return True
        return False

    return Key("ed25519", fingerprint, 64, verifies, sign)


def _signed(kind: str, key: str, body: bytes) -> bytes:
    parts = (kind.encode(), key.encode("utf-8", "surrogateescape"))
    return b"".join([_MAGIC, *(b"%d:%s" % (len(part), part) for part in parts), body])


# --- The file with the team's keys ----------------------------------------------------------------

_PEM = re.compile(rb"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", re.DOTALL)


def read_keys(path: str) -> tuple[Key, ...]:
    """Return the keys of a file, the first for writing; raise InvalidRequest if other users can read a secret."""
    setting = f"RTCOMPILE_REMOTE_KEY_FILE={path}"
    try:
        descriptor, status = sealed.open_regular(path)
    except OSError as error:
        raise InvalidRequest(f"{setting}: {error.strerror or error}") from None
    try:
        data = os.read(descriptor, 1 << 16).strip()
    finally:
        os.close(descriptor)
    us = os.getuid()
    if status.st_uid not in (0, us):
        raise InvalidRequest(
            f"{setting}: it belongs to user {status.st_uid}, neither to {us} nor to root, and who "
            f"has the key can make code that is run here; copy it: `install -m 600 {path} KEY`"
        )
    pems = [match[0] for match in _PEM.finditer(data)]
    rest = _PEM.sub(b"", data).strip()
    is_public = not rest and bool(pems) and all(b"BEGIN PUBLIC KEY" in pem for pem in pems)
    # Kubernetes gives a secret to a pod as root's file, readable by the group.
    roots = status.st_uid == 0 and us != 0
    if status.st_mode & (0o022 if is_public else 0o037 if roots else 0o077):
        mode = stat.S_IMODE(status.st_mode)
        raise InvalidRequest(
            f"{setting}: others may read or write it (mode {mode:04o}), and who has the key can "
            f"make code that is run here; `chmod 600 {path}`"
        )
    # A file that is not text is one key.
    lines = rest.splitlines() if rest.isascii() else [rest]
    secrets_here = [line.strip() for line in lines if line.strip()]
    shortest = min(map(len, [*pems, *secrets_here]), default=0)
    if shortest < _LEAST_KEY_BYTES:
        raise InvalidRequest(
            f"{setting}: a key has at least {_LEAST_KEY_BYTES} bytes, this one has {shortest}; "
            "`openssl rand -hex 32` makes one"
        )
    return (*(_pair(pem, setting) for pem in pems), *map(secret_key, secrets_here))
