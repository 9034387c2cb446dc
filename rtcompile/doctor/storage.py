"""Doctor's checks of the cache: place, owner, file system, size, integrity."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator

from rtcompile.cache import files, inventory
from rtcompile.cache.folder import Folder, UntrustedError
from rtcompile.cache.store import Store
from rtcompile.doctor.check import Check
from rtcompile.settings import Settings
from rtcompile.toolkit import Toolchain

# File systems on which locks between machines are slow or unreliable.
_SHARED = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "lustre",
        "gpfs",
        "beegfs",
        "ceph",
        "afs",
        "fuse.sshfs",
        "9p",
    ]
)
_FORGETTING = frozenset(["tmpfs", "ramfs"])
_LITTLE_ROOM = 1 << 30
_MOST_VERIFIED = 2000


def checks(settings: Settings, toolchain: Toolchain) -> Iterator[Check]:
    """Report the cache directory and its contents."""
    path = settings.cache_dir
    if not settings.cache_on_disk:
        yield Check("cache", "note", "in memory only", "CUPY_CACHE_IN_MEMORY=1 asks for that.")
        return
    folder = Folder(path)
    try:
        if settings.jit:
            folder.prepare()
            with folder.opened("objects") as objects:
                files.publish(".probe", b"", dir_fd=objects)
                files.discard(".probe", dir_fd=objects)
        elif not folder.check():
            yield Check("cache", "note", f"{path}: not there; RTCOMPILE_JIT=0 forbids making it")
            return
    except UntrustedError as error:
        yield Check(
            "cache", "error", str(error), "Set RTCOMPILE_CACHE_DIR to a folder of your own."
        )
        return
    except OSError as error:
        reason = error.strerror or error
        step = "Set RTCOMPILE_CACHE_DIR to a folder that you can write to."
        yield Check("cache", "warning", f"{path}: {reason}; builds are kept in memory", step)
        return
    yield Check("cache", "ok", path)
    yield _file_system(path)
    yield _contents(folder, settings)


def _file_system(path: str) -> Check:
    kind = _kind_of_file_system(path)
    free = shutil.disk_usage(path).free
    detail = f"{kind or 'unknown'}, {free / 2**30:.1f} GiB free"
    if kind in _SHARED:
        step = "A local disk is faster and locks better: set RTCOMPILE_CACHE_DIR."
        return Check("cache file system", "warning", detail, step)
    if free < _LITTLE_ROOM:
        step = "Make room, or set RTCOMPILE_CACHE_DIR: a precompiled header alone takes 300 MB."
        return Check("cache file system", "warning", detail, step)
    if kind in _FORGETTING:
        step = "It is empty after a reboot."
        return Check("cache file system", "note", detail, step)
    return Check("cache file system", "ok", detail)


def _kind_of_file_system(path: str) -> str:
    """Return the type of the file system that holds `path`, ``""`` if it is unknown."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return ""
    device = os.stat(path).st_dev
    numbers = f"{os.major(device)}:{os.minor(device)}"
    kinds = [
        line.partition(" - ")[2].split()[0]
        for line in lines
        if line.split()[2] == numbers and " - " in line
    ]
    return kinds[-1] if kinds else ""


def _contents(folder: Folder, settings: Settings) -> Check:
    stored = list(inventory.stored(folder))
    size = sum(status.st_size for _, status in stored)
    detail = f"{len(stored)} files, {size / 2**20:.0f} MiB of {settings.cache_size / 2**20:.0f}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        usage = Store.open(settings).usage()
    if usage is not None:
        detail += f", {usage.hits} hits, {usage.misses} builds"
    elif settings.jit:
        return Check("cache contents", "warning", f"{detail}; its books cannot be kept")
    if len(stored) > _MOST_VERIFIED:
        return Check("cache contents", "ok", f"{detail}; `rtcompile cache verify` reads them all")
    unusable = list(inventory.unusable(folder))
    others = sum(of_another_version for _, of_another_version in unusable)
    if others:
        detail += f"; {others} of another version of rtcompile"
    if damaged := len(unusable) - others:
        step = "They are not used; `rtcompile cache verify` removes them."
        return Check("cache contents", "warning", f"{detail}; {damaged} damaged", step)
    if others:
        step = (
            "This version does not use them. You need do nothing: they go when the cache is full, "
            "or with `rtcompile cache prune --size 100M` what was not used for longest goes now."
        )
        return Check("cache contents", "note", detail, step)
    return Check("cache contents", "ok", f"{detail}; all verify")
