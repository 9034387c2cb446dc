"""A store in a folder that several nodes mount and several users may share.

The folder may be on a network file system. So a file that another node replaces, removes or uses is a miss, and
each file's folder is opened before the file is, since NFS may have cached that the file is missing.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from contextlib import suppress
from urllib.parse import urlsplit

from rtcompile import InvalidRequest
from rtcompile.extras.cluster.entries import (
    BadEntryError,
    LeasesUnsupportedError,
    RemoteSettings,
    first_line,
    kind_of,
    most_bytes,
)
from rtcompile.files import sealed
from rtcompile.named import computed_once

# Another node replaced, removed or uses the file.
_LOST = (errno.ENOENT, errno.ESTALE, errno.EBUSY)
_MODE_SECONDS = 0.05  # until the process that made a folder has set its mode


class FolderStore:
    """The folder, made when something is first written; if it is a group's, members can replace its files."""

    limits_time = False

    def __init__(self, address: str, _: RemoteSettings) -> None:
        parts = urlsplit(address)
        if not parts.path.startswith("/") or parts.netloc not in ("", "localhost"):
            raise InvalidRequest("write file:///absolute/path")
        self._path, self.name = parts.path, f"file://{parts.path}"

    def get(self, key: str) -> bytes | None:
        try:
            return self._read(self._path_of(key), most_bytes(key))
        except OSError as error:
            if os.path.isdir(self._path) or error.errno == errno.EACCES:
                os.listdir(self._path)  # raises if the store itself cannot be read
                raise BadEntryError(first_line(error)) from None
            raise

    def put(self, key: str, data: bytes) -> None:
        """Replace a file; do nothing if another node is doing the same."""
        durable = kind_of(key) != "lease"
        path = self._path_of(key)
        temporary = _beside(path)
        self._make_folder(os.path.dirname(path))
        try:
            self._create(temporary, data, durable=durable)
            os.replace(temporary, path)
            _open_folder(os.path.dirname(path), sync=durable)
        except OSError as error:
            sealed.discard(temporary)
            if error.errno not in _LOST:
                raise

    def create(self, key: str, data: bytes) -> bool:
        path = self._path_of(key)
        mine = _beside(path)
        try:
            self._make_folder(os.path.dirname(path))
            # link() is atomic on NFS too, where O_EXCL and flock are unreliable.
            self._create(mine, data, durable=False)
            try:
                os.link(mine, path)
            finally:
                sealed.discard(mine)
        except FileExistsError:
            return False
        except OSError as error:
            raise LeasesUnsupportedError(f"{path}: {error.strerror or error}") from None
        return True

    @computed_once
    def _is_groups(self) -> bool:
        """Whether its mode, or that of the nearest folder that exists, has the group's bits: set-gid, and writable."""
        path = self._path
        while not os.path.exists(path):
            path = os.path.dirname(path)
        return os.stat(path).st_mode & 0o2020 == 0o2020

    def _path_of(self, key: str) -> str:
        return os.path.join(self._path, *key.split("/"))

    def _read(self, path: str, most: int) -> bytes | None:
        for _ in range(2):
            try:
                self._revalidate(os.path.dirname(path))
                descriptor, status = sealed.open_regular(path, follow=False)
                with open(descriptor, "rb") as file:
                    if status.st_size > most:
                        raise BadEntryError(f"{path}: no file of at most {most} bytes")
                    return file.read(status.st_size)
            except OSError as error:
                if error.errno not in _LOST:
                    raise
                if error.errno == errno.ENOENT:
                    return None
        return None

    def _revalidate(self, folder: str) -> None:
        """Open a folder, since NFS otherwise caches its entries, and missing files, for a minute."""
        try:
            _open_folder(folder)
        except FileNotFoundError:  # NFS may have cached that the folder is missing, too
            if folder == os.path.dirname(self._path):
                raise
            self._revalidate(os.path.dirname(folder))
            _open_folder(folder)

    def _create(self, path: str, data: bytes, *, durable: bool) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), 0o440 if self._is_groups else 0o400)
            if durable:
                os.fsync(file.fileno())

    def _make_folder(self, folder: str) -> None:
        """Make a folder and its missing parents: for this user only, or for the group if the store is a group's."""
        if os.path.isdir(folder):
            return
        above = os.path.dirname(folder)
        self._make_folder(above)
        is_groups = self._is_groups  # looked up before the folder is there
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            time.sleep(_MODE_SECONDS)  # another node made it just now
            return
        if is_groups:
            os.chmod(folder, 0o2770)  # noqa: S103  # shared with the folder's group on purpose


def _open_folder(path: str, *, sync: bool = False) -> None:
    """Open a folder and close it again."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        if sync:
            with suppress(OSError):  # some network file systems sync no folders
                os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: str) -> str:
    return f"{path}.{secrets.token_hex(8)}.tmp"
