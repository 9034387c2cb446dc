"""The port of shared stores: the interface of a store's client, and what the extra that uses the stores imports.

The extra is `rtcompile.extras.cluster`. It is loaded if RTCOMPILE_REMOTE is set and a build is in neither memory nor
the local cache.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any, Protocol, runtime_checkable

from rtcompile.files import fileset as fileset
from rtcompile.request import key as key
from rtcompile.request.key import KeyInputs as KeyInputs
from rtcompile.request.object_code import MOST_LISTED as MOST_LISTED
from rtcompile.request.object_code import ObjectCode as ObjectCode
from rtcompile.request.object_code import Record as Record
from rtcompile.request.object_code import decode_records as decode_records
from rtcompile.request.object_code import encode_records as encode_records
from rtcompile.request.values import one_of as one_of
from rtcompile.settings import cache_dir
from rtcompile.settings import flag as flag
from rtcompile.settings import note as note
from rtcompile.settings import seconds as seconds
from rtcompile.settings import size as size
from rtcompile.store.folder import Folder as Folder
from rtcompile.store.folder import at_end as at_end
from rtcompile.store.locks import Busy as Busy
from rtcompile.store.store import Store as Store
from rtcompile.store.store import object_file as object_file


class StoreError(Exception):
    """The store failed, or did not respond in time."""


class BadEntryError(Exception):
    """An entry is damaged, too large, of another key, or cannot be read; others may be intact."""


class LeasesUnsupportedError(StoreError):
    """The store ignores the condition "only if absent", so it supports no leases."""


class SharedStore(Protocol):
    """The interface of a shared store's client; any exception of a method counts as a failure of the store.

    A package adds a store by an entry point in the group ``rtcompile.stores``, named for the scheme of
    the address: a function of the address and the settings (``.ttl`` in seconds, ``.mode``).

    Its methods are called in a thread of their own, one at a time while builds wait, and their callers wait for 0.75 s.
    A client that limits the time of each request itself has a true attribute ``limits_time``, and is called directly.

    Attributes
    ----------
    name : str
        Its name in messages: the address without a password.

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
        """Return the value of `key`, or None."""

    def put(self, key: str, data: bytes) -> None:
        """Keep `data` under `key`."""


@runtime_checkable
class LeasingStore(SharedStore, Protocol):
    """A store with leases, with which one node builds while the others wait for its result."""

    def create(self, key: str, data: bytes) -> bool:
        """Store `data` if `key` is absent, and return whether it was; it may expire after five seconds."""


def sharing(inputs: KeyInputs, store: Store) -> Any:
    """Return the build in the stores of RTCOMPILE_REMOTE; None if it cannot be shared, or no store can be used."""
    # It has `find()` and `build(compile, seconds, waits)`.
    from rtcompile import _SHARING

    found = EntryPoint("sharing", _SHARING, "")
    return found.load()(inputs, store) if key.may_travel(inputs) else None


def count(counts: Mapping[str, float]) -> None:
    """Add counts of requests to shared stores to the local cache's journal."""
    Folder(cache_dir(os.environ)).log(counts)
