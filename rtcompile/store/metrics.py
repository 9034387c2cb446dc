"""What shared stores cost and spared the processes of this machine, counted in a file of the cache."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress

from rtcompile.files import sealed
from rtcompile.files.sealed import content_digest
from rtcompile.store.folder import Folder

_PLACE = ("statistics", "stores.json")
_MOST_STORES = 64
_MOST_TRIES = 20
_HOUR = 3600.0

_HELP = {
    "hits": "builds that a shared store had",
    "misses": "look-ups of builds that a shared store did not have",
    "written": "entries written",
    "refused": "entries that were not valid, and not used",
    "failures": "answers that were missing or wrong",
    "requests": "requests to the store",
    "pauses": "times that the store was left alone",
    "bytes_read": "bytes of entries read",
    "bytes_written": "bytes of entries written",
    "seconds_waited": "seconds in which builds waited for the store",
    "seconds_spared": "seconds of compiling that hits spared",
}

Counts = Mapping[str, float]


def read(folder: Folder) -> dict[str, dict[str, float]]:
    """Return the counts of all processes so far, by store."""
    data = folder.read(*_PLACE)
    try:
        found = json.loads(data or b"{}")
        return {
            str(name): {each: float(counts.get(each, 0)) for each in _HELP}
            for name, counts in found.items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def add(folder: Folder, more: Mapping[str, Counts]) -> None:
    """Add a process's counts to those of the machine; raises OSError where that is impossible."""
    if not folder.writable:
        return
    folder.prepare()
    with folder.opened(_PLACE[0]) as descriptor:
        _lock(descriptor)  # until it is closed
        known = read(folder)
        for name, counts in more.items():
            if name in known or len(known) < _MOST_STORES:
                before = known.get(name, {})
                known[name] = {each: before.get(each, 0) + counts.get(each, 0) for each in _HELP}
        data = json.dumps(known).encode()
        sealed.publish(_PLACE[1], data, dir_fd=descriptor, durable=False)


def is_first(folder: Folder, what: str) -> bool:
    """Return whether no process of this machine has begun something within the hour; note that this one has."""
    name = f"begun-{content_digest(what.encode())[:16]}"
    folder.prepare()
    with folder.opened(_PLACE[0]) as descriptor:
        try:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=descriptor))
        except FileExistsError:
            status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if time.time() - status.st_mtime < _HOUR:
                return False
            os.utime(name, dir_fd=descriptor, follow_symlinks=False)
    return True


def _lock(descriptor: int) -> None:
    """Lock a folder; raise OSError if another process has it for long, since this one may be ending."""
    for _ in range(_MOST_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.01)
    raise TimeoutError("the counts are locked")


def line(counts: Counts) -> str:
    """Return counts in one line, for people."""
    return (
        f"{counts['hits']:.0f} hits, {counts['misses']:.0f} misses, "
        f"{counts['bytes_read'] / 1e6:.1f} MB read, waited {counts['seconds_waited']:.1f} s, "
        f"spared {counts['seconds_spared']:.1f} s"
    )


def as_openmetrics(stores: Mapping[str, Counts]) -> str:
    """Return counts as OpenMetrics text."""
    lines = []
    for name, text in _HELP.items():
        family = f"rtcompile_store_{name}"
        lines += [f"# TYPE {family} counter", f"# HELP {family} {text}"]
        for store, counts in sorted(stores.items()):
            label = store.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
            lines.append(f'{family}_total{{store="{label}"}} {counts.get(name, 0):g}')
    return "\n".join([*lines, "# EOF", ""])
