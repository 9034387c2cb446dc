"""The shared stores that come with rtcompile: a folder, Redis, and the clouds' object stores."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from rtcompile import InvalidRequest
from rtcompile.store.shared import RemoteSettings, SharedStore

# The extra of `rtcompile` that installs what a module of this package imports.
_EXTRAS = {"redis_store": "redis", "cloud_store": "cloud"}


def in_folder(address: str, settings: RemoteSettings) -> SharedStore:
    """Return the store of a ``file://`` address."""
    from rtcompile.extras.cluster.folder_store import FolderStore

    parts = urlsplit(address)
    if not parts.path.startswith("/") or parts.netloc not in ("", "localhost"):
        raise InvalidRequest("write file:///absolute/path")
    return FolderStore(parts.path, group=settings.group)


def in_redis(address: str, settings: RemoteSettings) -> SharedStore:
    """Return the store of a ``redis://``, ``rediss://`` or ``unix://`` address."""
    module, renews = _module("redis_store"), settings.mode == "rw"
    store: SharedStore = module.RedisStore(address, settings.ttl, renews=renews)
    return store


def in_cloud(address: str, settings: RemoteSettings) -> SharedStore:
    """Return the store of an ``s3://``, ``gs://``, ``az://`` or ``https://`` (WebDAV) address."""
    parts = urlsplit(address)
    if not parts.netloc:
        raise InvalidRequest(f"no bucket in the address; write {parts.scheme}://BUCKET/prefix")
    anonymous = settings.mode == "anonymous"
    store: SharedStore = _module("cloud_store").CloudStore(
        address, anonymous=anonymous, token=os.environ.get("RTCOMPILE_REMOTE_TOKEN", "")
    )
    return store


def _module(name: str) -> Any:
    try:
        return import_module(f"{__package__}.{name}")
    except ModuleNotFoundError as missing:
        raise InvalidRequest(
            f"the package {missing.name} is not installed; `pip install 'rtcompile[{_EXTRAS[name]}]'`"
        ) from None
