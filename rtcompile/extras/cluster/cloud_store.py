"""A store in S3, Google Cloud Storage or Azure, by obstore; a lease is an object only one can create."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError, PreconditionError
from obstore.store import from_url

from rtcompile.store.shared import (
    ANSWER_SECONDS,
    CONNECT_SECONDS,
    BadEntryError,
    LeasesUnsupportedError,
    StoreError,
    errors_of_stores,
    first_line,
    most_bytes,
    without_password,
)

# What S3, Azure and Google say if not the object, but all that it would lie in is missing.
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_errors = partial(errors_of_stores, BaseError, OSError, ValueError)


class CloudStore:
    """The client of an object store; an `anonymous` one looks for no credentials."""

    def __init__(self, address: str, *, anonymous: bool) -> None:
        self.name = without_password(address)
        self._leases: bool | None = None
        try:
            self._store: Any = from_url(
                address,
                config={"skip_signature": True} if anonymous else None,
                client_options={
                    "connect_timeout": f"{round(CONNECT_SECONDS * 1000)}ms",
                    "timeout": f"{round(ANSWER_SECONDS * 1000)}ms",
                    "allow_http": True,
                },
                retry_config={"max_retries": 0},
            )
        except BaseError as error:
            raise ValueError(first_line(error)) from None

    @_errors()
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

    @_errors()
    def put(self, key: str, data: bytes) -> None:
        obstore.put(self._store, key, data, use_multipart=False)

    @_errors()
    def create(self, key: str, data: bytes, seconds: float) -> bool:  # noqa: ARG002  # it forgets nothing
        if self._leases is None:
            self._leases = self._keeps_conditions()
        if not self._leases:
            raise LeasesUnsupportedError(
                f"{self.name} ignores conditions (If-None-Match): without leases two nodes may "
                "build the same at once"
            )
        return self._create(key, data)

    @_errors()
    def replace(self, key: str, before: bytes, data: bytes | None, seconds: float) -> bool:  # noqa: ARG002
        held, version = self._held(key)
        if held != before:
            return False
        if data is None:
            self.delete(key)
            return True
        return self._replace(key, data, version)

    def _held(self, key: str) -> tuple[bytes | None, dict[str, str]]:
        """Return a lease and which version of its object that is."""
        try:
            found = obstore.get(self._store, key)
            if found.meta["size"] > most_bytes(key):
                return None, {}
            version = {name: found.meta[name] for name in ("e_tag", "version")}
            return bytes(found.bytes()), {name: tag for name, tag in version.items() if tag}
        except (NotFoundError, FileNotFoundError):
            return None, {}

    def _replace(self, key: str, data: bytes, version: dict[str, str]) -> bool:
        """Replace an object if it still has this version, else another node was first."""
        try:
            obstore.put(self._store, key, data, mode=version, use_multipart=False)
        except (PreconditionError, NotFoundError, FileNotFoundError):
            return False
        return True

    def _create(self, key: str, data: bytes) -> bool:
        try:
            obstore.put(self._store, key, data, mode="create", use_multipart=False)
        except (AlreadyExistsError, FileExistsError):
            return False
        return True

    def _keeps_conditions(self) -> bool:
        """Test whether the store refuses to create an existing object, which not all do."""
        probe = f"probe/{secrets.token_hex(8)}"
        try:
            return self._create(probe, b"1") and not self._create(probe, b"2")
        finally:
            self.delete(probe)

    def delete(self, key: str) -> None:
        # A failure is harmless, since leases expire and probes have one byte.
        with suppress(BaseError, OSError, ValueError):
            obstore.delete(self._store, key)

    def listing(self, kind: str) -> Iterator[tuple[str, int]]:
        with _errors():
            for page in obstore.list(self._store, prefix=kind):
                for found in page:
                    yield found["path"].rpartition("/")[2], found["size"]

    @_errors()
    def clock(self, key: str) -> float:
        return float(obstore.head(self._store, key)["last_modified"].timestamp())
