"""The environment's settings of shared stores, and the client for each address."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from rtcompile.errors import InvalidRequest
from rtcompile.extras.cluster.stores import SharedStore, without_password
from rtcompile.request.values import one_of
from rtcompile.settings import flag, seconds

_MODES = ("rw", "ro", "anonymous")
_TTL_SECONDS = 30 * 86400.0
_MIN_SECONDS = 0.05


class RemoteSettings(NamedTuple):
    """The shared stores, in the order in which they are asked, and how they are used."""

    addresses: tuple[str, ...]
    mode: str = "rw"  # "rw", "ro", or "anonymous": read-only without credentials
    key_file: str = ""  # the file with the team's key; empty if entries are not signed
    unsigned: bool = False  # whether entries without a signature are accepted
    ttl: float = _TTL_SECONDS  # seconds after which Redis may drop an entry
    min_seconds: float = _MIN_SECONDS  # builds that took less time are not written
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
        ttl, least = "RTCOMPILE_REMOTE_TTL", "RTCOMPILE_REMOTE_MIN_SECONDS"
        found = cls(
            addresses=tuple(filter(None, addresses)),
            mode=one_of("RTCOMPILE_REMOTE_MODE", env.get("RTCOMPILE_REMOTE_MODE") or "rw", _MODES),
            key_file=os.path.expanduser(key_file),
            unsigned=flag(env, "RTCOMPILE_REMOTE_UNSIGNED", False),
            ttl=seconds(ttl, env.get(ttl)) or _TTL_SECONDS,
            min_seconds=_or_zero(least, env.get(least)),
            group=flag(env, "RTCOMPILE_CACHE_SHARED", False),
        )
        if found.addresses and not (found.key_file or found.unsigned):
            raise InvalidRequest(
                "RTCOMPILE_REMOTE is set and RTCOMPILE_REMOTE_KEY_FILE is not: without a key anybody "
                "who can write to the store can make code that runs here. Make one with `openssl "
                "rand -hex 32 > key && chmod 600 key`, the same for all of the team, or set "
                "RTCOMPILE_REMOTE_UNSIGNED=1 where everybody who reaches the store is trusted"
            )
        return found


def _or_zero(name: str, said: str | None) -> float:
    if said is not None and said.strip("0.") == "" and "0" in said:
        return 0.0
    found = seconds(name, said)
    return _MIN_SECONDS if found is None else found


def open_store(address: str, settings: RemoteSettings | None = None) -> SharedStore:
    """Return the client for an address; it connects when it is first used."""
    settings = RemoteSettings((address,)) if settings is None else settings
    parts = urlsplit(address)
    shown = f"RTCOMPILE_REMOTE={without_password(address)}"
    if parts.scheme == "file":
        from rtcompile.extras.cluster.folder_store import FolderStore

        if not parts.path.startswith("/") or parts.netloc not in ("", "localhost"):
            raise InvalidRequest(f"{shown}: write file:///absolute/path")
        return FolderStore(parts.path, group=settings.group)
    if parts.scheme in ("s3", "gs", "az") and not parts.netloc:
        raise InvalidRequest(f"{shown}: which bucket? {parts.scheme}://NAME")
    extra = ""
    try:
        if parts.scheme in ("redis", "rediss", "unix"):
            extra = "redis"
            from rtcompile.extras.cluster.redis_store import RedisStore

            return RedisStore(address, settings.ttl)
        if parts.scheme in ("s3", "gs", "az"):
            extra = "cloud"
            from rtcompile.extras.cluster.cloud_store import CloudStore

            return CloudStore(address, anonymous=settings.mode == "anonymous")
    except ModuleNotFoundError as missing:
        raise InvalidRequest(
            f"{shown}: the package {missing.name} is not installed; "
            f"`pip install 'rtcompile[{extra}]'`"
        ) from None
    except ValueError as error:
        raise InvalidRequest(f"{shown}: {error}") from None
    raise InvalidRequest(
        f"{shown}: an address begins with redis://, rediss://, s3://, gs://, az:// or file://"
    )
