"""Entries of shared stores: compressed, and signed with the team's key.

A cubin is code that will run, so its origin has to be checked. The signature covers the entry's
kind and key, so no entry can replace another. Nothing is decompressed, decoded or loaded
before the signature is verified.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat

from rtcompile.errors import InvalidRequest

_MAGIC = b"rtcompile entry 1\n"
_MAC_BYTES = 32
_UNSIGNED = bytes(_MAC_BYTES)
_MOST_BYTES = 1 << 30  # of one decompressed entry, against decompression bombs
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
            if zstandard.frame_content_size(body) > _MOST_BYTES:
                raise BadEntryError("it is larger than any build")
            opened = zstandard.ZstdDecompressor().decompress(body, max_output_size=_MOST_BYTES)
            return bytes(opened)
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
        # Root's, and readable by our group: how Kubernetes gives a secret to a pod.
        roots = status.st_uid == 0 and os.getuid() != 0
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
