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
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import FOLDER, IN_JOB, Header, SearchDir, relative_to, trusted
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
    return {
        "source": unit.source.encode(),
        "name": unit.name.encode(),
        "options": [option.replace(FOLDER, IN_JOB).encode() for option in options],
        "expressions": [expression.encode() for expression in unit.name_expressions],
        "target": unit.target,
        "provided": _toolkit_folders(tuple(search)),
        "texts": {os.fsencode(path.lstrip("/")): text.encode() for path, text in unit.texts},
    }


@functools.lru_cache(maxsize=16)
def _toolkit_folders(search: tuple[SearchDir, ...]) -> list[bytes]:
    """Return the folders of the toolkit, each with a slash at its end."""
    toolkit = [each.path for each in search if not each.is_own]
    return [os.fsencode(path.rstrip("/") + "/") for path in toolkit]


class Dependencies:
    """The files of a build as they become known, with the labels of the search directories that they are in."""

    def __init__(self, search: Sequence[SearchDir], before: FileSet | None = None) -> None:
        before = before or FileSet()
        self._search, self._split_path = search, relative_to(tuple(search))
        self.headers = {header.path: header for header in before.headers}
        self.absent, self.present = dict.fromkeys(before.absent), dict.fromkeys(before.present)
        self.include_results = {*before.include_results}
        self.own_path = dict.fromkeys(before.own_path)
        self.problem = ""

    def doubt(self, problem: str) -> None:
        """Note why the build is not cached, unless another reason is known."""
        self.problem = self.problem or problem

    def doubt_clock(self, clock: str) -> None:
        """Note that a text of the build has a clock macro, unless that is empty."""
        if clock:
            self.doubt(f"{clock} is different in every build")

    def locate(self, path: str) -> tuple[str, str]:
        """Return the label of the directory of a file, and its path below it."""
        position, relative = self._split_path(path)
        return self._search[position].label if position >= 0 else "", relative

    def is_there(self, path: str) -> None:
        """Note a path that exists, and that a ``__has_include`` may have found."""
        label, rest = self.locate(path)
        self.present[path] = None
        self.include_results.add(f"{label}/{rest}")

    def file_set(self, looked_for: Iterable[str], newest_ns: int = 0) -> FileSet:
        """Return the dependencies as a set, which is uncacheable if one of the paths `looked_for` is volatile."""
        return FileSet(
            tuple(self.headers.values()),
            absent=tuple(self.absent),
            present=tuple(self.present),
            include_results=tuple(sorted(self.include_results)),
            newest_ns=newest_ns,
            own_path=tuple(self.own_path),
            uncacheable=self.problem or fileset.volatile(looked_for),
        )


class _Observed(Dependencies):
    """The files that NVRTC opened or looked for."""

    def __init__(
        self, seen: Mapping[str, Any], search: Sequence[SearchDir], before: FileSet
    ) -> None:
        super().__init__(search, before)
        self.problem = seen["problem"]
        self.toolkit = tuple(f"{d.path.rstrip('/')}/" for d in search if not d.is_own)
        self.has_changed = False
        for path, *stats, digest, mentioned, was_read in seen["opened"]:
            if was_read:
                self._read(os.fsdecode(path), stats, digest, mentioned, seen["begun_ns"])
            else:
                self.is_there(os.fsdecode(path))
        for path in seen["files"]:
            self.is_there(os.fsdecode(path))
        self.present.update((f"{os.fsdecode(path)}/.", None) for path in seen["folders"])
        gaps = _gaps(seen["absent"], [directory.path.rstrip("/") for directory in search])
        self.absent.update(dict.fromkeys(gaps))

    def _read(
        self, path: str, stats: Sequence[int], digest: str, mentioned: int, begun_ns: int
    ) -> None:
        try:
            if not digest:
                digest, mentioned = _digest(path, tuple(stats))
        except OSError:
            self.has_changed = True
        label, relative = self.locate(path)
        header = Header(path, label, relative, digest, *stats[:4])
        known = self.headers.get(path)
        if known is not None and known.digest != digest:
            self.has_changed = True
        self.headers[path] = trusted(header, begun_ns, self.toolkit)
        if mentioned & _OWN_PATH:
            self.own_path[label] = None
        if mentioned & _CLOCK and not self.problem:
            clock, has_moved = _clock(path, digest)
            self.doubt_clock(clock)
            self.has_changed = self.has_changed or has_moved


def file_set(
    seen: Mapping[str, Any],
    search: Sequence[SearchDir],
    *,
    before: FileSet,
) -> FileSet:
    """Return a compile's file set, from the result of `probes.end` and a precompiled header's files."""
    if before.is_empty and not any(value for name, value in seen.items() if name != "begun_ns"):
        return FileSet()  # as of most small kernels
    observed = _Observed(seen, search, before)
    looked_for = [path for path, *_ in seen["opened"]]
    looked_for += [*seen["files"], *seen["folders"], *seen["absent"]]
    own = [path for path in map(os.fsdecode, looked_for) if not path.startswith(observed.toolkit)]
    found = observed.file_set(own)
    current = None if observed.has_changed else found.current()
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
