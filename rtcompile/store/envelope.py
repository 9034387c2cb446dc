"""Entries of shared stores: signed by one of the team's keys, with the size of what they hold.

A cubin is code that will run, so its origin has to be checked. The signature covers the entry's kind
and key, so no entry can replace another. Nothing is decompressed, decoded or loaded before the
signature is verified, and then to no more bytes than were signed for.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from rtcompile.errors import InvalidRequest
from rtcompile.files import sealed
from rtcompile.store.shared import BadEntryError, most_data

_MAGIC = b"rtcompile entry 2\n"
_SIZE = struct.Struct("<Q")
_LEAST_KEY_BYTES = 16
_FINGERPRINT = 16  # hexadecimal digits


class Key(NamedTuple):
    """What signs entries, or only verifies them; its fingerprint is part of their keys in a store."""

    kind: str
    fingerprint: str
    bytes_of_signature: int
    verifies: Callable[
        [bytes, bytes], bool
    ]  # whether the second is this key's signature of the first
    sign: Callable[[bytes], bytes] | None


def _digest(label: bytes, key: bytes) -> str:
    return hashlib.sha256(label + b"\0" + key).hexdigest()[:_FINGERPRINT]


# Stands for a key where everybody who reaches the store is trusted.
_UNSIGNED = Key(
    "unsigned", "unsigned", 32, lambda _, found: found == bytes(32), lambda _: bytes(32)
)


def secret_key(secret: bytes) -> Key:
    """Return the key of one secret of the whole team: who can read can write (HMAC-SHA256)."""

    def sign(data: bytes) -> bytes:
        return hmac.digest(secret, data, hashlib.sha256)

    def verifies(data: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(signature, sign(data))

    return Key("hmac-sha256", _digest(b"rtcompile key", secret), 32, verifies, sign)


def _pair(pem: bytes, setting: str) -> Key:
    """Return half of a pair of Ed25519: who has the public one alone reads, and can forge nothing."""
    library = _cryptography()
    forms, sign = library.hazmat.primitives.serialization, None
    try:
        if b"PUBLIC KEY" in pem:
            public = forms.load_pem_public_key(pem)
        else:
            private = forms.load_pem_private_key(pem, None)
            public, sign = private.public_key(), private.sign
        fingerprint = _digest(b"rtcompile public key", public.public_bytes_raw())
    except (
        ValueError,
        TypeError,
        AttributeError,
        library.exceptions.UnsupportedAlgorithm,
    ) as error:
        raise InvalidRequest(f"{setting}: this is no key of Ed25519 ({error})") from None

    def verifies(data: bytes, signature: bytes) -> bool:
        with suppress(library.exceptions.InvalidSignature):
            public.verify(signature, data)
            return True
        return False

    return Key("ed25519", fingerprint, 64, verifies, sign)


def _cryptography() -> Any:
    try:
        import cryptography.exceptions
        import cryptography.hazmat.primitives.asymmetric.ed25519
        import cryptography.hazmat.primitives.serialization
    except ModuleNotFoundError as missing:
        if missing.name != "cryptography":
            raise
        raise InvalidRequest(
            "a key of Ed25519 needs the package cryptography: pip install 'rtcompile[ed25519]'"
        ) from None
    return cryptography


class Envelope:
    """Compresses and signs entries with the first key, and opens those of any of the keys."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self.keys: tuple[Key, ...] = tuple(keys) or (_UNSIGNED,)
        self.sign = self.keys[0].sign  # None where the first key only verifies

    def store_key(self, kind: str, key: str, of: Key | None = None) -> str:
        """Return the key of an entry in a store: entries of other signing keys have others."""
        return f"{(of or self.keys[0]).fingerprint}/{kind}/{key}"

    def seal(self, kind: str, key: str, data: bytes) -> bytes:
        """Return the entry of `data`, a `kind` of `shared.MOST_BYTES`, under `key`."""
        import zstandard

        assert self.sign is not None
        body = _SIZE.pack(len(data)) + zstandard.ZstdCompressor(level=3).compress(data)
        return _MAGIC + self.sign(_signed(kind, key, body)) + body

    def open(self, kind: str, key: str, entry: object, of: Key | None = None) -> bytes:
        """Return what was sealed; raise `BadEntryError` for anything else."""
        signer = of or self.keys[0]
        head = len(_MAGIC) + signer.bytes_of_signature
        if not isinstance(entry, bytes):
            raise BadEntryError(f"the store answered with {type(entry).__name__}, not with bytes")
        if entry[: len(_MAGIC)] != _MAGIC or len(entry) <= head + _SIZE.size:
            raise BadEntryError("it is no entry of this version of rtcompile")
        body = entry[head:]
        if not signer.verifies(_signed(kind, key, body), entry[len(_MAGIC) : head]):
            raise BadEntryError("its signature is not of this team's key")
        (size,) = _SIZE.unpack_from(body)
        import zstandard

        try:
            packed = body[_SIZE.size :]
            # A frame that states another size would get that much memory.
            if size > most_data(kind) or zstandard.frame_content_size(packed) != size:
                raise BadEntryError(f"it is larger than any {kind}, or than it says")
            data = bytes(zstandard.ZstdDecompressor().decompress(packed, max_output_size=size))
        except zstandard.ZstdError as error:
            raise BadEntryError(str(error)) from None
        if len(data) != size:
            raise BadEntryError("it does not have the size that it says")
        return data


def _signed(kind: str, key: str, body: bytes) -> bytes:
    parts = (kind.encode(), key.encode("utf-8", "surrogateescape"))
    return b"".join([_MAGIC, *(b"%d:%s" % (len(part), part) for part in parts), body])


# --- The file with the team's keys ----------------------------------------------------------------

_PEM = re.compile(rb"-----BEGIN ([A-Z ]+)-----.*?-----END \1-----", re.DOTALL)


def read_keys(path: str) -> tuple[Key, ...]:
    """Return the keys of a file, the first for writing; InvalidRequest if others can read more than public keys."""
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
    # Root's, and readable by our group: how Kubernetes gives a secret to a pod.
    roots = status.st_uid == 0 and us != 0
    if status.st_mode & (0o022 if is_public else 0o037 if roots else 0o077):
        mode = stat.S_IMODE(status.st_mode)
        raise InvalidRequest(
            f"{setting}: others may read or write it (mode {mode:04o}), and who has the key can "
            f"make code that is run here; `chmod 600 {path}`"
        )
    # A file of other bytes than text is one key, whatever it holds.
    lines = rest.splitlines() if rest.isascii() else [rest]
    secrets_here = [line.strip() for line in lines if line.strip()]
    shortest = min(map(len, [*pems, *secrets_here]), default=0)
    if shortest < _LEAST_KEY_BYTES:
        raise InvalidRequest(
            f"{setting}: a key has at least {_LEAST_KEY_BYTES} bytes, this one has {shortest}; "
            "`rtcompile cache key new` makes one"
        )
    return (*(_pair(pem, setting) for pem in pems), *map(secret_key, secrets_here))


def new_key(*, pair: bool = False) -> tuple[bytes, bytes]:
    """Return the text of a new key, and of its public half, which only a pair has."""
    if not pair:
        return secrets.token_hex(32).encode() + b"\n", b""
    primitives = _cryptography().hazmat.primitives
    forms = primitives.serialization
    private = primitives.asymmetric.ed25519.Ed25519PrivateKey.generate()
    pem, plain = forms.Encoding.PEM, forms.NoEncryption()
    return (
        private.private_bytes(pem, forms.PrivateFormat.PKCS8, plain),
        private.public_key().public_bytes(pem, forms.PublicFormat.SubjectPublicKeyInfo),
    )
