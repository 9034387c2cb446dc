"""The settings of shared stores, and the client for each address."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from urllib.parse import urlsplit

from rtcompile.errors import InvalidRequest
from rtcompile.extras.cluster.entries import most_data
from rtcompile.named import NamedTuple
from rtcompile.store.shared import SharedStore, flag, one_of, seconds

# A client's own limits, for connecting and for each reply.
CONNECT_SECONDS = 0.5
REPLY_SECONDS = 0.75

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
    scheme = urlsplit(address).scheme
    shown = f"RTCOMPILE_REMOTE={without_password(address)}"
    if scheme in _CLIENTS:
        entries = {scheme: EntryPoint(scheme, f"rtcompile.extras.cluster.{_CLIENTS[scheme]}", "")}
    else:
        entries = {entry.name: entry for entry in entry_points(group="rtcompile.stores")}
    if scheme not in entries:
        known = ", ".join(f"{name}://" for name in sorted({*_CLIENTS, *entries}))
        raise InvalidRequest(
            f"{shown}: an address begins with {known}; a package adds another scheme by an entry "
            "point in the group rtcompile.stores"
        )
    try:
        store: SharedStore = entries[scheme].load()(address, settings or RemoteSettings((address,)))
    except Exception as error:  # noqa: BLE001  # a company's own store may raise anything
        text = first_line(error)
        if isinstance(error, ModuleNotFoundError) and scheme in _CLIENTS:
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
