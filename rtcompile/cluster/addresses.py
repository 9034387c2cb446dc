"""Opens the client for an address of ``RTCOMPILE_REMOTE``."""

from __future__ import annotations

from urllib.parse import urlsplit

from rtcompile.cluster.settings import RemoteSettings
from rtcompile.cluster.stores import SharedStore, without_password
from rtcompile.errors import InvalidRequest


def open_store(address: str, settings: RemoteSettings | None = None) -> SharedStore:
    """Return the client for an address; it connects when it is first used."""
    settings = RemoteSettings((address,)) if settings is None else settings
    parts = urlsplit(address)
    shown = f"RTCOMPILE_REMOTE={without_password(address)}"
    if parts.scheme == "file":
        from rtcompile.cluster.folder_store import FolderStore

        if not parts.path.startswith("/") or parts.netloc not in ("", "localhost"):
            raise InvalidRequest(f"{shown}: write file:///absolute/path")
        return FolderStore(parts.path, group=settings.group)
    if parts.scheme in ("s3", "gs", "az") and not parts.netloc:
        raise InvalidRequest(f"{shown}: which bucket? {parts.scheme}://NAME")
    extra = ""
    try:
        if parts.scheme in ("redis", "rediss", "unix"):
            extra = "redis"
            from rtcompile.cluster.redis_store import RedisStore

            return RedisStore(address, settings.ttl)
        if parts.scheme in ("s3", "gs", "az"):
            extra = "cloud"
            from rtcompile.cluster.cloud_store import CloudStore

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
