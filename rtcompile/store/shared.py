"""The interface `SharedStore`, and the settings for shared stores.

A method raises `BadEntryError` if one entry cannot be used, and anything else if the store failed.
`tier.Tier` limits the time of each.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple, Protocol, runtime_checkable
from urllib.parse import urlsplit

from rtcompile.errors import InvalidRequest
from rtcompile.request.values import one_of
from rtcompile.settings import flag, seconds, size

# --- The interface: a store keeps bytes under text keys, and may support leases --------------------

CONNECT_SECONDS = 0.5
ANSWER_SECONDS = 0.75
# The largest size of an entry, before and after compression. Both are checked before reading, since otherwise a few
# kilobytes in a store, or one large value, could fill a node's memory.
MOST_BYTES = {"object": 64 << 20, "manifest": 4 << 20, "lease": 4096}
SMALL = 32 << 10  # bytes; an object of up to this size is inlined in its page
_MOST_OVERHEAD = 4096  # for the signature, and for data that cannot be compressed


def most_data(kind: str, environ: Mapping[str, str] = os.environ) -> int:
    """Return the largest size of an entry's data."""
    given = kind == "object" and environ.get("RTCOMPILE_REMOTE_MAX_SIZE")
    return size("RTCOMPILE_REMOTE_MAX_SIZE", given) if given else MOST_BYTES[kind]


def most_bytes(store_key: str) -> int:
    """Return the largest size of an entry, by its store key ``signing key's fingerprint/kind/name``."""
    kind = store_key.split("/")[-2:][0]
    return (most_data(kind) if kind in MOST_BYTES else _MOST_OVERHEAD) + _MOST_OVERHEAD


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
    """A store with leases, with which one node builds while the others wait for its result.

    Further optional methods: ``listing(kind)`` yields name and size of each ``kind/name``, ``get_many(keys)``
    returns a list, ``clock(key)`` returns the store's time after `key` was written, ``flush()`` completes deferred
    work.
    """

    def create(self, key: str, data: bytes, seconds: float) -> bool:
        """Store `data` if `key` is absent, and return whether it was; it may expire after `seconds`."""

    def replace(self, key: str, before: bytes, data: bytes | None, seconds: float) -> bool:
        """Replace `before` under `key` by `data` (None removes it); return whether it was there."""


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


# --- The settings of the environment, and the client for each address ------------------------------

_MODES = ("rw", "ro", "anonymous")
_TTL_SECONDS = 30 * 86400.0


class RemoteSettings(NamedTuple):
    """The shared stores in the order of queries, and their settings."""

    addresses: tuple[str, ...]
    mode: str = "rw"  # "rw", "ro", or "anonymous": read-only without credentials
    key_file: str = ""  # the file with the team's key; empty if entries are not signed
    unsigned: bool = False  # whether entries without a signature are accepted
    ttl: float = _TTL_SECONDS  # seconds after which Redis may drop an entry
    # Whether the group may read and replace files in a ``file://`` store.
    group: bool = False

    @property
    def shares_nothing(self) -> str:
        """Why ``RTCOMPILE_CACHE_SHARED=1`` has no effect; ``""`` if it has, or is not set."""
        if not self.group or any(address.startswith("file:") for address in self.addresses):
            return ""
        return (
            "RTCOMPILE_CACHE_SHARED=1 is for a file:// store, and RTCOMPILE_REMOTE names none. "
            "The folder of RTCOMPILE_CACHE_DIR always belongs to one user; to share builds, set "
            "RTCOMPILE_REMOTE=file:///shared/folder"
        )

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> RemoteSettings:
        """Read the settings; raise `InvalidRequest` naming a variable that cannot be used."""
        env = os.environ if environ is None else environ
        addresses = [text.strip() for text in env.get("RTCOMPILE_REMOTE", "").split(",")]
        key_file = env.get("RTCOMPILE_REMOTE_KEY_FILE", "")
        ttl = "RTCOMPILE_REMOTE_TTL"
        unsigned, group = "RTCOMPILE_REMOTE_UNSIGNED", "RTCOMPILE_CACHE_SHARED"
        most_data("object", env)
        found = cls(
            addresses=tuple(filter(None, addresses)),
            mode=one_of("RTCOMPILE_REMOTE_MODE", env.get("RTCOMPILE_REMOTE_MODE") or "rw", _MODES),
            key_file=os.path.expanduser(key_file),
            unsigned=flag(unsigned, env.get(unsigned) or "0"),
            ttl=seconds(ttl, env.get(ttl) or "inf") or _TTL_SECONDS,
            group=flag(group, env.get(group) or "0"),
        )
        if found.addresses and not (found.key_file or found.unsigned):
            raise InvalidRequest(
                "RTCOMPILE_REMOTE is set and RTCOMPILE_REMOTE_KEY_FILE is not: without a key anybody "
                "who can write to the store can make code that runs here. Make one with `openssl "
                "rand -hex 32 > key && chmod 600 key`, the same for all of the team, or set "
                "RTCOMPILE_REMOTE_UNSIGNED=1 if everybody who can reach the store is trusted"
            )
        return found


def open_store(address: str, settings: RemoteSettings | None = None) -> SharedStore:
    """Return the client for an address, ours or of an entry point; it connects when it is first used."""
    from rtcompile import _STORES

    scheme = urlsplit(address).scheme
    shown = f"RTCOMPILE_REMOTE={without_password(address)}"
    if scheme in _STORES:
        entries = {scheme: EntryPoint(scheme, _STORES[scheme], "")}
    else:
        entries = {entry.name: entry for entry in entry_points(group="rtcompile.stores")}
    if scheme not in entries:
        known = ", ".join(f"{name}://" for name in sorted({*_STORES, *entries}))
        raise InvalidRequest(
            f"{shown}: an address begins with {known}; a package adds another scheme by an entry "
            "point in the group rtcompile.stores"
        )
    try:
        store: SharedStore = entries[scheme].load()(address, settings or RemoteSettings((address,)))
    except Exception as error:  # noqa: BLE001  # a company's own store may raise anything
        text = first_line(error)
        if isinstance(error, ModuleNotFoundError) and scheme in _STORES:
            extra = _STORES[scheme].rpartition(".")[2].partition("_")[0]  # "redis" of "redis_store"
            text = f"the package {error.name} is not installed; `pip install 'rtcompile[{extra}]'`"
        raise InvalidRequest(f"{shown}: {text}") from None
    return store
