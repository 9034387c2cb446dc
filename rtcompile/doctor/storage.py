"""Doctor's checks of the cache (owner, file system, size, integrity) and of the shared stores."""

from __future__ import annotations

import os
import secrets
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from rtcompile.cache import files, inventory
from rtcompile.cache.folder import Folder, UntrustedError
from rtcompile.cache.store import Store
from rtcompile.cluster.breaker import PROMPT_SECONDS, within
from rtcompile.cluster.remote import Remote
from rtcompile.cluster.settings import RemoteSettings
from rtcompile.cluster.stores import LeasesUnsupportedError, SharedStore, StoreError
from rtcompile.doctor.machine import Check
from rtcompile.errors import InvalidRequest
from rtcompile.settings import Settings
from rtcompile.toolkit import Toolchain

# File systems on which locks between machines are slow or unreliable.
_SHARED = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "afs", "fuse.sshfs", "9p",
}  # fmt: skip
_FORGETTING = {"tmpfs", "ramfs"}
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


_MOST_SECONDS = 5.0  # for all questions to one store
_MOST_SKEW_SECONDS = 2.0  # leases in files and objects end by the nodes' clocks


def shared_stores(settings: Settings, toolchain: Toolchain) -> Iterator[Check]:
    """Try each store: round trip, clock, lease, rights."""
    try:
        found = RemoteSettings.from_environ()
        if found.shares_nothing:
            yield Check("shared stores", "warning", found.shares_nothing)
        if not settings.remote:
            return
        stores = Remote(found)
    except InvalidRequest as error:
        yield Check("shared stores", "error", str(error), "Builds go on without them.")
        return
    for tier in stores.tiers:
        check, _, problem = within(_MOST_SECONDS, partial(_try, tier.store, found.mode))
        yield check or _unreachable(tier.store, problem)


def _unreachable(store: SharedStore, problem: str) -> Check:
    step = "Builds go on without it. Is the server there, and are address and password right?"
    return Check(_name(store), "error", f"{store.name}: {problem}", step)


def _name(store: SharedStore) -> str:
    return f"shared store {store.name.partition(':')[0]}"


def _try(store: SharedStore, mode: str) -> Check:
    name = _name(store)
    probe = f"probe/{secrets.token_hex(8)}"
    begin = time.monotonic()
    try:
        store.get(probe)
        seconds = time.monotonic() - begin
        begin = time.monotonic()  # the first answer was the connection's, too
        store.get(probe)
        seconds = min(seconds, time.monotonic() - begin)
    except StoreError as error:
        return _unreachable(store, str(error))
    detail = f"{store.name}: {seconds * 1e3:.1f} ms a round trip; reads"
    if mode != "rw":
        return Check(name, "ok", f"{detail} (RTCOMPILE_REMOTE_MODE={mode}: nothing is written)")
    try:
        store.put(probe, b"probe")
    except StoreError as error:
        step = "Grant the right, or set RTCOMPILE_REMOTE_MODE=ro."
        return Check(name, "warning", f"{detail}, cannot write: {error}", step)
    try:
        skew = store.clock(probe) - time.time()
        detail += f", writes; its clock is {abs(skew):.1f} s {'ahead' if skew > 0 else 'behind'}"
        leased = f"{probe}-lease"
        token = secrets.token_hex(8)
        claims = [store.acquire(leased, each, 10.0) for each in (token, "another")]
        store.release(leased, token)
    except LeasesUnsupportedError as error:
        return Check(name, "warning", detail, f"{error}.")
    except StoreError as error:
        return Check(name, "warning", f"{detail}; {error}", "It answers only at times.")
    finally:
        with suppress(StoreError):
            store.delete(probe)
    if claims != ["ours", "another's"]:
        step = "Two nodes may build the same at once."
        return Check(name, "warning", f"{detail}; its leases do not hold", step)
    detail += "; gives leases"
    if seconds > PROMPT_SECONDS:
        step = "Builds wait a second for it in all; one nearer by comes first in RTCOMPILE_REMOTE."
        return Check(name, "warning", detail, step)
    if abs(skew) > _MOST_SKEW_SECONDS and not store.name.startswith("redis"):
        step = "Leases end by the nodes' clocks: set them (NTP)."
        return Check(name, "warning", detail, step)
    return Check(name, "ok", detail)
