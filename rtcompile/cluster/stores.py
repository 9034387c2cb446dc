"""Clients for shared stores: Redis and Valkey, S3, GCS, Azure, shared folders.

Each keeps bytes under text keys, and most can give leases. `StoreError` is the only error that the
methods raise, within the client's time limits: 0.25 s to connect, 0.75 s for an answer.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from rtcompile.errors import InvalidRequest

__all__ = [
    "LeasesUnsupportedError",
    "SharedStore",
    "StoreError",
    "open_store",
    "without_password",
]

CONNECT_SECONDS = 0.25
ANSWER_SECONDS = 0.75

_T = TypeVar("_T")


class StoreError(Exception):
    """The store failed, or did not answer in time."""


class LeasesUnsupportedError(StoreError):
    """The store ignores the condition "only if absent", so it cannot give leases."""


class SharedStore(Protocol):
    """The interface of a store. `name` is its address without a password."""

    name: str

    def get(self, key: str) -> bytes | None:
        """Return what is under `key`, None if there is nothing."""

    def put(self, key: str, data: bytes) -> None:
        """Keep `data` under `key`."""

    def acquire(self, key: str, token: str, seconds: float) -> bool:
        """Take the lease `key` for some seconds; False if another process has it."""

    def renew(self, key: str, token: str, seconds: float) -> None:
        """Extend the lease by some seconds, if `token` still holds it."""

    def release(self, key: str, token: str) -> None:
        """Release the lease, if `token` still holds it."""

    def delete(self, key: str) -> None:
        """Remove what is under `key`, if anything is."""

    def listing(self, kind: str) -> Iterator[tuple[str, int]]:
        """Yield name and size of what is under ``kind/name``."""

    def clock(self, key: str) -> float:
        """Return the store's time, in seconds since the epoch; `key` was written just now."""


def open_store(address: str, *, ttl: float, group: bool) -> SharedStore:
    """Return the client for an address; it connects when it is first used.

    Parameters
    ----------
    address : str
        ``redis://host:6379/0``, ``rediss://…``, ``s3://bucket/prefix``, ``gs://…``, ``az://…`` or
        ``file:///shared/folder``.
    ttl : float
        Seconds after which Redis may forget an entry.
    group : bool
        Whether files in a shared folder are the group's to read.

    Raises
    ------
    InvalidRequest
        An unknown scheme, or an address without its parts; the message names the setting.
    ModuleNotFoundError
        The client's package is not installed.
    """
    parts = urlsplit(address)
    if parts.scheme in ("redis", "rediss", "unix"):
        return RedisStore(address, ttl)
    if parts.scheme in ("s3", "gs", "az"):
        if not parts.netloc:
            raise InvalidRequest(f"RTCOMPILE_REMOTE={address}: which bucket? {parts.scheme}://NAME")
        return CloudStore(address)
    if parts.scheme == "file":
        if not parts.path.startswith("/") or parts.netloc not in ("", "localhost"):
            raise InvalidRequest(f"RTCOMPILE_REMOTE={address}: write file:///absolute/path")
        return FolderStore(parts.path, group=group)
    raise InvalidRequest(
        f"RTCOMPILE_REMOTE={address}: an address begins with redis://, rediss://, s3://, gs://, az:// "
        "or file://"
    )


# --- Redis ---------------------------------------------------------------------------------------

_RENEW = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end"
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"


class RedisStore:
    """A store in Redis, Valkey, or another server with the same protocol."""

    def __init__(self, address: str, ttl: float) -> None:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        self.name = without_password(address)
        self._ttl = round(ttl)
        self._error = redis.RedisError
        try:
            self._redis: Any = redis.Redis.from_url(
                address,
                socket_connect_timeout=CONNECT_SECONDS,
                socket_timeout=ANSWER_SECONDS,
                retry=Retry(NoBackoff(), 0),
                retry_on_error=[],
            )
        except ValueError as error:
            raise InvalidRequest(f"RTCOMPILE_REMOTE={self.name}: {error}") from None

    def get(self, key: str) -> bytes | None:
        found: bytes | None = self._ask(lambda: self._redis.get(_redis_key(key)))
        return found

    def put(self, key: str, data: bytes) -> None:
        self._ask(lambda: self._redis.set(_redis_key(key), data, ex=self._ttl))

    def acquire(self, key: str, token: str, seconds: float) -> bool:
        milliseconds = round(seconds * 1000)
        return bool(
            self._ask(lambda: self._redis.set(_redis_key(key), token, nx=True, px=milliseconds))
        )

    def renew(self, key: str, token: str, seconds: float) -> None:
        self._ask(
            lambda: self._redis.eval(_RENEW, 1, _redis_key(key), token, round(seconds * 1000))
        )

    def release(self, key: str, token: str) -> None:
        self._ask(lambda: self._redis.eval(_RELEASE, 1, _redis_key(key), token))

    def delete(self, key: str) -> None:
        self._ask(lambda: self._redis.delete(_redis_key(key)))

    def listing(self, kind: str) -> Iterator[tuple[str, int]]:
        pattern = _redis_key(f"{kind}/*")
        found: Iterator[bytes] = self._redis.scan_iter(match=pattern, count=1000)
        while (key := self._ask(lambda: next(found, None))) is not None:
            yield key.decode().partition("/")[2], self._ask(partial(self._redis.strlen, key))

    def clock(self, key: str) -> float:
        seconds, microseconds = self._ask(lambda: self._redis.time())
        return float(seconds + microseconds / 1e6)

    def _ask(self, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except (self._error, OSError, ValueError) as error:
            raise StoreError(str(error) or type(error).__name__) from None


def _redis_key(key: str) -> str:
    return f"rtcompile:{key}"


# --- S3, GCS, Azure ------------------------------------------------------------------------------


class CloudStore:
    """An object store, by obstore; a lease is an object that only one client can create."""

    def __init__(self, address: str) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
        from obstore.store import from_url

        self.name = without_password(address)
        self._obstore = obstore
        self._there, self._missing = AlreadyExistsError, NotFoundError
        self._error = BaseError
        self._leases: bool | None = None
        try:
            self._store: Any = from_url(
                address,
                client_options={
                    "connect_timeout": f"{round(CONNECT_SECONDS * 1000)}ms",
                    "timeout": f"{round(ANSWER_SECONDS * 1000)}ms",
                    "allow_http": True,
                },
                retry_config={"max_retries": 0},
            )
        except (BaseError, ValueError) as error:
            raise InvalidRequest(f"RTCOMPILE_REMOTE={self.name}: {error}") from None

    def get(self, key: str) -> bytes | None:
        try:
            return bytes(self._obstore.get(self._store, key).bytes())
        except (self._missing, FileNotFoundError):
            return None
        except (self._error, OSError, ValueError) as error:
            raise StoreError(_first_line(error)) from None

    def put(self, key: str, data: bytes) -> None:
        try:
            self._obstore.put(self._store, key, data, use_multipart=False)
        except (self._error, OSError, ValueError) as error:
            raise StoreError(_first_line(error)) from None

    def acquire(self, key: str, token: str, seconds: float) -> bool:
        if self._leases is None:
            self._leases = self._keeps_conditions()
        if not self._leases:
            raise LeasesUnsupportedError(
                f"{self.name} ignores conditions (If-None-Match): without leases two nodes may "
                "build the same at once"
            )
        if self._create(key, _lease(token, seconds)):
            return True
        held = self.get(key)
        if held is not None and _expired(held):
            self.delete(key)
            return self._create(key, _lease(token, seconds))
        return False

    def renew(self, key: str, token: str, seconds: float) -> None:
        if _holder(self.get(key)) == token:
            self.put(key, _lease(token, seconds))

    def release(self, key: str, token: str) -> None:
        if _holder(self.get(key)) == token:
            self.delete(key)

    def _create(self, key: str, data: bytes) -> bool:
        try:
            self._obstore.put(self._store, key, data, mode="create", use_multipart=False)
        except (self._there, FileExistsError):
            return False
        except (self._error, OSError, ValueError) as error:
            raise StoreError(_first_line(error)) from None
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
        with suppress(self._error, OSError, ValueError):
            self._obstore.delete(self._store, key)

    def listing(self, kind: str) -> Iterator[tuple[str, int]]:
        try:
            for page in self._obstore.list(self._store, prefix=kind):
                for found in page:
                    yield found["path"].rpartition("/")[2], found["size"]
        except (self._error, OSError, ValueError) as error:
            raise StoreError(_first_line(error)) from None

    def clock(self, key: str) -> float:
        try:
            return float(self._obstore.head(self._store, key)["last_modified"].timestamp())
        except (self._error, OSError, ValueError) as error:
            raise StoreError(_first_line(error)) from None


def _lease(token: str, seconds: float) -> bytes:
    return json.dumps({"token": token, "until": time.time() + seconds}).encode()


def _holder(held: bytes | None) -> str:
    try:
        return str(json.loads(held or b"{}").get("token", ""))
    except (ValueError, AttributeError):
        return ""


def _expired(held: bytes) -> bool:
    try:
        return float(json.loads(held)["until"]) < time.time()
    except (ValueError, KeyError, TypeError):
        return True


# --- a folder on a shared file system
# --------------------------------------------------------------


class FolderStore:
    """A folder that several nodes mount. Any error of the network file system counts as a miss."""

    def __init__(self, path: str, *, group: bool) -> None:
        self.name = f"file://{path}"
        self._path = path
        self._file_mode, self._folder_mode = (0o440, 0o2770) if group else (0o400, 0o700)

    def get(self, key: str) -> bytes | None:
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(self._place(key), flags), "rb") as file:
                return file.read()
        except OSError:  # ENOENT, and ESTALE of a file that was replaced meanwhile
            return None

    def put(self, key: str, data: bytes) -> None:
        path = self._place(key)
        temporary = f"{path}.{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}.tmp"
        try:
            self._make_folder(os.path.dirname(path))
            self._write(temporary, data)
            os.replace(temporary, path)
            _sync_folder(os.path.dirname(path))
        except FileNotFoundError:
            if self.get(key) != data:  # else another node wrote the same first
                raise StoreError(f"{path} cannot be written") from None
        except OSError as error:
            _discard(temporary)
            raise StoreError(f"{path}: {error.strerror or error}") from None

    def acquire(self, key: str, token: str, seconds: float) -> bool:
        path = self._place(key)
        try:
            self._make_folder(os.path.dirname(path))
            # link() is atomic on NFS too, where O_EXCL and flock are unreliable.
            mine = f"{path}.{token}"
            self._write(mine, _lease(token, seconds))
            try:
                for _ in range(2):
                    try:
                        os.link(mine, path)
                        return True
                    except FileExistsError:
                        held = self.get(key)
                        if held is None or not _expired(held):
                            return False
                        _discard(path)
            finally:
                _discard(mine)
        except OSError as error:
            raise LeasesUnsupportedError(f"{path}: {error.strerror or error}") from None
        return False

    def renew(self, key: str, token: str, seconds: float) -> None:
        if _holder(self.get(key)) == token:
            self.put(key, _lease(token, seconds))

    def release(self, key: str, token: str) -> None:
        if _holder(self.get(key)) == token:
            _discard(self._place(key))

    def delete(self, key: str) -> None:
        _discard(self._place(key))

    def listing(self, kind: str) -> Iterator[tuple[str, int]]:
        with suppress(OSError), os.scandir(self._place(kind)) as found:
            for entry in found:
                if not entry.name.endswith(".tmp"):
                    yield entry.name, entry.stat().st_size

    def clock(self, key: str) -> float:
        try:
            return os.stat(self._place(key)).st_mtime
        except OSError as error:
            raise StoreError(str(error.strerror)) from None

    def _place(self, key: str) -> str:
        return os.path.join(self._path, *key.split("/"))

    def _make_folder(self, folder: str) -> None:
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            os.chmod(folder, self._folder_mode)

    def _write(self, path: str, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), self._file_mode)
            os.fsync(file.fileno())


def _sync_folder(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # some network file systems sync no folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(path: str) -> None:
    with suppress(OSError):  # another process removed it first
        os.unlink(path)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def without_password(address: str) -> str:
    """Return an address without its password, for messages."""
    parts = urlsplit(address)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
