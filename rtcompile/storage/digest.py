"""The one digest: of contents, and of labelled fields."""

from __future__ import annotations

try:  # hashlib loads OpenSSL: 2.5 ms in front of a cache hit of less than one
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

__all__ = ["content_digest"]


def content_digest(data: bytes | memoryview) -> str:
    """Return the digest of a file's bytes, in hexadecimal."""
    return blake2b(data, digest_size=32).hexdigest()
