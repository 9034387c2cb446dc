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
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Protocol

from rtcompile.errors import InvalidRequest
from rtcompile.store.shared import MOST_BYTES, BadEntryError

_MAGIC = b"rtcompile entry 2\n"
_SIZE = struct.Struct("<Q")
_LEAST_KEY_BYTES = 16
_FINGERPRINT = 16  # hexadecimal digits


class Key(Protocol):
    """What signs entries, or only verifies them; its fingerprint is part of their place in a store."""

    kind: str
    fingerprint: str
    bytes_of_signature: int
    can_sign: bool

    def sign(self, data: bytes) -> bytes:
        """Return the signature of `data`."""

    def verifies(self, data: bytes, signature: bytes) -> bool:
        """Return whether this key made the signature."""


class _Unsigned:
    """Stands for a key where everybody who reaches the store is trusted."""

    kind = fingerprint = "unsigned"
    bytes_of_signature = 32
    can_sign = True

    def sign(self, data: bytes) -> bytes:  # noqa: ARG002
        return bytes(32)

    def verifies(self, data: bytes, signature: bytes) -> bool:  # noqa: ARG002
        return signature == bytes(32)


class _Secret:
    """One secret of the whole team: who can read can write (HMAC-SHA256)."""

    kind = "hmac-sha256"
    bytes_of_signature = 32
    can_sign = True

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self.fingerprint = _digest(b"rtcompile key", secret)

    def sign(self, data: bytes) -> bytes:
        return hmac.digest(self._secret, data, hashlib.sha256)

    def verifies(self, data: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(signature, self.sign(data))


class _Pair:
    """A pair of Ed25519: who has the public half alone reads, and can forge nothing."""

    kind = "ed25519"
    bytes_of_signature = 64

    def __init__(self, public: Any, private: Any = None) -> None:
        self._public, self._private = public, private
        self.can_sign = private is not None
        self.fingerprint = _digest(b"rtcompile public key", public.public_bytes_raw())

    def sign(self, data: bytes) -> bytes:
        signature: bytes = self._private.sign(data)
        return signature

    def verifies(self, data: bytes, signature: bytes) -> bool:
        with suppress(_cryptography().InvalidSignature):
            self._public.verify(signature, data)
            return True
        return False


def _digest(label: bytes, key: bytes) -> str:
    return hashlib.sha256(label + b"\0" + key).hexdigest()[:_FINGERPRINT]


class Envelope:
    """Compresses and signs entries with the first key, and opens those of any of the keys."""

    def __init__(self, keys: Sequence[Key] = ()) -> None:
        self.keys: tuple[Key, ...] = tuple(keys) or (_Unsigned(),)
        self.can_seal = self.keys[0].can_sign

    def place(self, kind: str, key: str, of: Key | None = None) -> str:
        """Return where an entry lies in a store: other keys' entries lie elsewhere."""
        return f"{(of or self.keys[0]).fingerprint}/{kind}/{key}"

    def seal(self, kind: str, key: str, data: bytes) -> bytes:
        """Return the entry of `data`, a `kind` of `MOST_BYTES`, under `key`."""
        import zstandard

        body = _SIZE.pack(len(data)) + zstandard.ZstdCompressor(level=3).compress(data)
        return _MAGIC + self.keys[0].sign(_signed(kind, key, body)) + body

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
            if size > MOST_BYTES[kind] or zstandard.frame_content_size(packed) != size:
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
_SECOND_LIBRARY = "cryptography"


def read_keys(path: str) -> tuple[Key, ...]:
    """Return the keys of a file, the first for writing and all for reading.

    Raises InvalidRequest for a file that others can read, unless it has public keys alone.
    """
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
        data = os.read(descriptor, 1 << 16).strip()
    finally:
        os.close(descriptor)
    found = [match[1] for match in _PEM.finditer(data)]
    is_public = not _PEM.sub(b"", data).strip() and set(found) == {b"PUBLIC KEY"}
    # Root's, and readable by our group: how Kubernetes gives a secret to a pod.
    roots = status.st_uid == 0 and us != 0
    if status.st_mode & (0o022 if is_public else 0o037 if roots else 0o077):
        mode = stat.S_IMODE(status.st_mode)
        raise InvalidRequest(
            f"{setting}: others may read or write it (mode {mode:04o}), and who has the key can "
            f"make code that is run here; `chmod 600 {path}`"
        )
    return tuple(_keys(data, setting))


def _keys(data: bytes, setting: str) -> list[Key]:
    made: list[Key] = []
    texts = [match[0] for match in _PEM.finditer(data)]
    rest = _PEM.sub(b"", data).strip()
    # A file of other bytes than text is one key, whatever it holds.
    secret = rest.splitlines() if rest.isascii() else [rest]
    for text in [*texts, *filter(None, map(bytes.strip, secret))]:
        if text in texts:
            made.append(_pair(text, setting))
        elif len(text) < _LEAST_KEY_BYTES:
            raise InvalidRequest(
                f"{setting}: a key has at least {_LEAST_KEY_BYTES} bytes, this one has {len(text)}; "
                "`rtcompile cache key new` makes one"
            )
        else:
            made.append(_Secret(text))
    if not made:
        raise InvalidRequest(
            f"{setting}: a key has at least {_LEAST_KEY_BYTES} bytes, this one has 0; "
            "`rtcompile cache key new` makes one"
        )
    return made


def _pair(text: bytes, setting: str) -> _Pair:
    library = _cryptography()
    try:
        if b"PUBLIC KEY" in text:
            key = _Pair(library.load_pem_public_key(text))
        else:
            private = library.load_pem_private_key(text, None)
            key = _Pair(private.public_key(), private)
    except (ValueError, TypeError, AttributeError, library.UnsupportedAlgorithm) as error:
        raise InvalidRequest(f"{setting}: this is no key of Ed25519 ({error})") from None
    return key


class _Library:
    """What is used of the package cryptography."""

    def __init__(self) -> None:
        from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self.InvalidSignature, self.UnsupportedAlgorithm = InvalidSignature, UnsupportedAlgorithm
        self.load_pem_public_key = serialization.load_pem_public_key
        self.load_pem_private_key = serialization.load_pem_private_key
        self.serialization, self.Ed25519PrivateKey = serialization, Ed25519PrivateKey


def _cryptography() -> _Library:
    try:
        return _Library()
    except ModuleNotFoundError as missing:
        if missing.name != _SECOND_LIBRARY:
            raise
        raise InvalidRequest(
            "a key of Ed25519 needs the package cryptography: pip install 'rtcompile[ed25519]'"
        ) from None


def new_key(*, pair: bool = False) -> tuple[bytes, bytes]:
    """Return the text of a new key, and of its public half, which only a pair has."""
    if not pair:
        return secrets.token_hex(32).encode() + b"\n", b""
    library = _cryptography()
    forms = library.serialization
    private = library.Ed25519PrivateKey.generate()
    pem, plain = forms.Encoding.PEM, forms.NoEncryption()
    return (
        private.private_bytes(pem, forms.PrivateFormat.PKCS8, plain),
        private.public_key().public_bytes(pem, forms.PublicFormat.SubjectPublicKeyInfo),
    )
