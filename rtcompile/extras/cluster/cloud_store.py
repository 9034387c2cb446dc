"""A store in S3, Google Cloud Storage, Azure or WebDAV, by obstore.

A lease is an object that only one client can create. It stays until a life-cycle rule of the bucket removes it.
"""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, NotSupportedError
from obstore.store import from_url

from rtcompile import InvalidRequest
from rtcompile.extras.cluster.entries import (
    CONNECT_SECONDS,
    REPLY_SECONDS,
    BadEntryError,
    LeasesUnsupportedError,
    RemoteSettings,
    StoreError,
    first_line,
    most_bytes,
    without_password,
)

# Words of S3's, Azure's and Google's errors about a missing bucket or container, not just a missing object.
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")


class CloudStore:
    """The client of an object store; an `anonymous` one uses no credentials."""

    limits_time = True

    def __init__(self, address: str, settings: RemoteSettings) -> None:
        parts = urlsplit(address)
        if not parts.netloc:
            raise InvalidRequest(f"no bucket in the address; write {parts.scheme}://BUCKET/prefix")
        anonymous, token = settings.mode == "anonymous", os.environ.get("RTCOMPILE_REMOTE_TOKEN")
        self.name = without_password(address)
        self._has_conditions: bool | None = None  # None: not known
        config: dict[str, Any] = {"skip_signature": True} if anonymous else {}
        options: dict[str, Any] = {
            "connect_timeout": f"{round(CONNECT_SECONDS * 1000)}ms",
            "timeout": f"{round(REPLY_SECONDS * 1000)}ms",
            "allow_http": True,
        }
        if address.startswith("http") and token:
            options["default_headers"] = {"Authorization": f"Bearer {token}"}
        try:
            self._store: Any = from_url(
                address,
                config=config or None,
                client_options=options,
                retry_config={"max_retries": 0},
            )
        except BaseError as error:
            raise ValueError(first_line(error)) from None

    def get(self, key: str) -> bytes | None:
        try:
            found = obstore.get(self._store, key)
            if found.meta["size"] > most_bytes(key):
                raise BadEntryError(f"{key}: it has {found.meta['size']} bytes")
            return bytes(found.bytes())
        except (NotFoundError, FileNotFoundError) as error:
            if any(code in str(error) for code in _NO_BUCKET):
                raise StoreError(first_line(error)) from None
            return None

    def put(self, key: str, data: bytes) -> None:
        obstore.put(self._store, key, data, use_multipart=False)

    def create(self, key: str, data: bytes) -> bool:
        created = self._has_conditions is not False and self._create(key, data)
        if self._has_conditions is None:
            # If it exists now, only a store that ignores the condition creates it again.
            self._has_conditions = not (created and self._create(key, data))
        if not self._has_conditions:
            raise LeasesUnsupportedError(
                f"{self.name} ignores conditions (If-None-Match): without leases two nodes may "
                "build the same kernel at once"
            )
        return created

    def _create(self, key: str, data: bytes) -> bool:
        try:
            obstore.put(self._store, key, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, FileExistsError):
            return False
        except (NotSupportedError, NotImplementedError):  # WebDAV has no such condition
            pass
        return True
