"""What a shared store does, and the settings that name the stores.

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

# --- What a shared store does: it keeps bytes under text keys, and may give leases ----------------

CONNECT_SECONDS = 0.5
ANSWER_SECONDS = 0.75
# The bytes that an entry may have, before and after compression. Both are known before they are read:
# otherwise a few kilobytes in a store, or one large value, could fill a node's memory.
MOST_BYTES = {"object": 64 << 20, "manifest": 4 << 20, "lease": 4096}
SMALL = 32 << 10  # bytes; an object of up to this size is inlined in its page
_MOST_OVERHEAD = 4096  # of a signature, and of what cannot be compressed


def most_data(kind: str, environ: Mapping[str, str] = os.environ) -> int:
    """Return how many bytes the data of an entry can have."""
    given = kind == "object" and environ.get("RTCOMPILE_REMOTE_MAX_SIZE")
    return size("RTCOMPILE_REMOTE_MAX_SIZE", given) if given else MOST_BYTES[kind]


def most_bytes(store_key: str) -> int:
    """Return how many bytes an entry can have, by its store key ``signing key's fingerprint/kind/name``."""
    kind = store_key.split("/")[-2:][0]
    return (most_data(kind) if kind in MOST_BYTES else _MOST_OVERHEAD) + _MOST_OVERHEAD


class StoreError(Exception):
    """The store failed, or did not answer in time."""


class BadEntryError(Exception):
    """An entry is damaged, too large, of another key, or cannot be read; others may be well."""


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
    """What a store may do besides, so that one node builds while the others wait for its result.

    Optional too: ``listing(kind)`` yields name and size of what is under ``kind/name``, ``get_many(keys)`` returns
    a list, ``clock(key)`` gives the store's time once `key` was written, ``flush()`` ends what was put off.
    """

    def create(self, key: str, data: bytes, seconds: float) -> bool:
        """Keep `data` if there is nothing under `key`, and say so; it may go after some seconds."""

    def replace(self, key: str, before: bytes, data: bytes | None, seconds: float) -> bool:
        """Keep `data`, or nothing if it is None, if `before` is under `key`; say whether it was."""


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


class RemoteSettings(NamedTuple):
    """The shared stores, in the order in which they are queried, and how they are used."""

    addresses: tuple[str, ...]
    mode: str = "rw"  # "rw", "ro", or "anonymous": read-only without credentials
    key_file: str = ""  # the file with the team's key; empty if entries are not signed
    unsigned: bool = False  # whether entries without a signature are accepted
    ttl: float = _TTL_SECONDS  # seconds after which Redis may drop an entry
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
                "RTCOMPILE_REMOTE_UNSIGNED=1 where everybody who reaches the store is trusted"
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
