"""Makes a `FileSet` of the file accesses of NVRTC that `workers.probes` recorded.

If a file has changed after the build, `newest_ns` is the current time, and the build is not cached.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rtcompile.files import fileset
from rtcompile.files import headers as memory_headers
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import Header, SearchDir, relative_to
from rtcompile.request.cxx import scan
from rtcompile.request.units import TranslationUnit
from rtcompile.workers import probes

_OWN_PATH, _CLOCK = 1, 2  # of `probes.mentions`

# Digest and mentions of toolkit headers, by path, stat signature and device.
_digests: dict[tuple[Any, ...], tuple[str, int]] = {}
_MAX_DIGESTS = 8192


def job_fields(
    unit: TranslationUnit, options: Iterable[str], search: Sequence[SearchDir] = ()
) -> dict[str, Any]:
    """Return a unit as fields of a job for `workers.nvrtc` and `workers.probes`."""
    toolkit = [d.path for d in search if not (d.is_own or d.is_provided)]
    return {
        "source": unit.source.encode(),
        "name": unit.name.encode(),
        "options": [option.encode() for option in options],
        "expressions": [expression.encode() for expression in unit.name_expressions],
        "target": unit.target,
        "provided": [os.fsencode(path.rstrip("/") + "/") for path in toolkit],
        "texts": {os.fsencode(path): text.encode() for path, text in unit.texts},
    }


def file_set(  # noqa: C901, PLR0912, PLR0915  # one branch for each kind of observation
    seen: Mapping[str, Any],
    search: Sequence[SearchDir],
    *,
    texts: Iterable[tuple[str, str]] = (),
    before: FileSet,
) -> FileSet:
    """Return a compile's file set, from the result of `probes.end` and a precompiled header's files."""
    split_path = relative_to(tuple(search))
    toolkit = tuple(f"{d.path.rstrip('/')}/" for d in search if not d.is_own)
    headers = {header.path: header for header in before.headers}
    present, include_results = dict.fromkeys(before.present), {*before.include_results}
    own_path = dict.fromkeys(before.own_path)
    uncacheable: str = seen["problem"]
    has_changed = False

    def is_there(path: str) -> None:
        position, rest = split_path(path)
        present[path] = None
        include_results.add(f"{search[position].label if position >= 0 else ''}/{rest}")

    for raw, *stats, digest, mentioned, was_read in seen["opened"]:
        path = os.fsdecode(raw)
        if not was_read:
            is_there(path)
            continue
        try:
            if not digest:
                digest, mentioned = _digest(path, tuple(stats))
        except OSError:
            has_changed = True
        position, relative = split_path(path)
        label = search[position].label if position >= 0 else ""
        header = Header(path, label, relative, digest, *stats[:4])
        known = headers.get(path)
        if known is not None and known.digest != digest:
            has_changed = True
        headers[path] = fileset.trusted(header, stats[4], seen["begun_ns"], toolkit)
        if mentioned & _OWN_PATH:
            own_path[label] = None
        if mentioned & _CLOCK and not uncacheable:
            clock, has_moved = _clock(path, digest)
            uncacheable = f"{clock} is different in every build" if clock else ""
            has_changed = has_changed or has_moved
    for raw in seen["files"]:
        is_there(os.fsdecode(raw))
    for raw in seen["folders"]:
        present[f"{os.fsdecode(raw)}/."] = None
    top = len(memory_headers.folder(())) + 1
    given = {path[top:]: text for path, text in texts}
    looked_for = [os.path.normpath(os.fsdecode(p)) for p in (*seen["texts"], *seen["absent texts"])]
    names = [path[top:] for path in looked_for if path[top:]]
    for name in names:
        mentions = scan(given.get(name, ""))
        if mentions.clock:
            uncacheable = uncacheable or f"{mentions.clock} is different in every build"
        if mentions.own_path:
            include_results |= {memory_headers.result_of_all(path[: top - 1]) for path, _ in texts}
    include_results |= memory_headers.text_results(names, given)

    gaps = _gaps(seen["absent"], [directory.path.rstrip("/") for directory in search])
    absent = {**dict.fromkeys(before.absent), **dict.fromkeys(gaps)}
    found = FileSet(
        tuple(headers.values()),
        absent=tuple(absent),
        present=tuple(present),
        include_results=tuple(sorted(include_results)),
        own_path=tuple(own_path),
    )
    looked_for = [path for path, *_ in seen["opened"]]
    looked_for += [*seen["files"], *seen["folders"], *seen["absent"]]
    own = [path for path in map(os.fsdecode, looked_for) if not path.startswith(toolkit)]
    found.uncacheable = uncacheable or fileset.volatile(own)
    current = None if has_changed else found.current()
    if current is None:
        found.newest_ns = time.time_ns()
        return found
    return current


def _digest(path: str, stats: tuple[int, ...]) -> tuple[str, int]:
    """Return a toolkit header's digest and mentions; OSError if it changed since the compile."""
    key = (path, *stats)
    known = _digests.get(key)
    if known is None:
        header, data, status = fileset.read(path, "", "")
        if probes.signature(status) != stats:
            raise FileNotFoundError(path)
        if len(_digests) >= _MAX_DIGESTS:
            _digests.clear()
        known = _digests[key] = header.digest, probes.mentions(data)
    return known


@functools.lru_cache(maxsize=64)
def _clock(path: str, digest: str) -> tuple[str, bool]:
    """Return the clock macro in a header, and whether the header has changed."""
    try:
        header, data, _ = fileset.read(path, "", "")
    except OSError:
        return "", True
    return scan(data.decode("utf-8", "surrogateescape")).clock, header.digest != digest


def _gaps(paths: Iterable[bytes], directories: Iterable[str]) -> Iterable[str]:
    """Yield, for each missing path, its first missing parent folder, or itself."""
    # A missing search directory is listed itself, since its path differs on other machines.
    known = dict.fromkeys(map(os.fsencode, directories), b"")

    def missing(folder: bytes) -> bytes:
        """Return the first missing folder on a path; b"" if all exist."""
        found = known.get(folder)
        if found is None:
            exists = not folder or os.access(folder, os.F_OK)
            found = known[folder] = b"" if exists else missing(folder.rpartition(b"/")[0]) or folder
        return found

    for path in paths:
        yield os.fsdecode(missing(path.rpartition(b"/")[0]) or path)
