"""Are the files that a build depended on what they were? By stat first, by content where that differs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import repeat

from rtcompile.core import includes
from rtcompile.core.includes import Dependencies
from rtcompile.core.key import content_digest
from rtcompile.core.request import Header, SearchDir

__all__ = ["difference", "file_clock_ns", "record", "refresh", "same", "unchanged"]


def file_clock_ns() -> int:
    """Return the time (ns since the epoch) that a file changed now would carry: 4 ms coarse."""
    # CLOCK_REALTIME_COARSE, which the time module does not name.
    return time.clock_gettime_ns(5)


def record(
    trace: Iterable[str], search: Sequence[SearchDir], *, source: str = "", name: str = ""
) -> Dependencies:
    """Read, hash and stat the headers of a build, and note the files that must not appear.

    Parameters
    ----------
    trace : iterable of str
        Paths that the compiler read, as it spelled them.
    search : sequence of SearchDir
        The directories it searched, in order.
    source, name : str
        The translation unit: its own includes and ``__has_include`` are looked at too.

    Returns
    -------
    Dependencies
        With `uncacheable` set if their answer cannot be checked later.
    """
    return _Recorder(tuple(dict.fromkeys(trace)), search).record(source, name)


class _Recorder:
    def __init__(self, trace: tuple[str, ...], search: Sequence[SearchDir]) -> None:
        self.trace = trace
        self.search = search
        self.headers: list[Header] = []
        self.absent: dict[str, None] = {}
        self.present: dict[str, None] = {}
        self.answers: set[str] = set()
        self.names_files: dict[str, None] = {}
        self.newest_ns = 0
        self.uncacheable = ""
        self._changed_ns: dict[str, int | None] = {}

    def record(self, source: str, name: str) -> Dependencies:
        read = frozenset(self.trace)
        # (directory of the file, names in its #include "…", whether one is computed)
        quoting: list[tuple[str, tuple[str, ...], bool]] = []
        self._scan(source, os.path.dirname(name), "", quoting)
        for path in self.trace:
            try:
                data, header = _read(path, self.search)
            except OSError as error:
                self.uncacheable = f"header {path} cannot be read: {error.strerror}"
                break
            if not path.startswith("/"):
                self.uncacheable = f"header {path} was found from the compiler's working directory"
                break
            self.headers.append(header)
            self.newest_ns = max(self.newest_ns, header.ctime_ns)
            text = data.decode("utf-8", "surrogateescape")
            self._scan(text, os.path.dirname(path), header.label, quoting)
            if includes.file_macros(text):
                self.names_files[header.label] = None
        found_by: dict[str, None] = {}
        for path in self.trace:
            for directory, spelling in includes.shadows(path, self.search):
                self._must_not_appear(directory, spelling)
            for directory in self.search:
                prefix = directory.path.rstrip("/") + "/"
                if path.startswith(prefix):
                    found_by[path[len(prefix) :]] = None
        for directory, spellings, computed in quoting:
            for spelling in (*spellings, *(found_by if computed else ())):
                if f"{directory}/{spelling}" not in read:
                    self._must_not_appear(directory, spelling)
        now = file_clock_ns()
        return Dependencies(
            headers=tuple(_distrust(header, now) for header in self.headers),
            absent=tuple(self.absent),
            present=tuple(self.present),
            answers=tuple(sorted(self.answers)),
            newest_ns=self.newest_ns,
            names_files=tuple(self.names_files),
            uncacheable=self.uncacheable,
        )

    def _scan(
        self,
        text: str,
        directory: str,
        label: str,
        quoting: list[tuple[str, tuple[str, ...], bool]],
    ) -> None:
        if clock := includes.clock_macros(text):
            self.uncacheable = f"{clock} is different in every build"
        if directory.startswith("/"):
            spellings, computed = includes.include_spellings(text)
            if spellings or computed:
                quoting.append((directory, spellings, computed))
        for asked in includes.has_include_names(text):
            if asked[0] not in '<"':
                self.uncacheable = f"__has_include({asked}) is computed"
                continue
            own = (directory,) if asked[0] == '"' and directory.startswith("/") else ()
            for folder in (*own, *(d.path.rstrip("/") for d in self.search)):
                self._ask(folder, asked[1:-1])

    def _must_not_appear(self, directory: str, spelling: str) -> None:
        """Note that no file may come to be at this place, by its first ancestor that is not there.

        A missing ``user0/cute`` speaks for every header below it: CuTe's 770 candidates come down
        to some tens.
        """
        path = directory
        for part in ("", *spelling.split("/")):
            path = f"{path}/{part}" if part else path
            if self._change_time(path) is None:
                self.absent[path] = None
                return
        if os.path.isdir(path):
            self.present[f"{path}/."] = None

    def _ask(self, directory: str, name: str) -> None:
        path = os.path.join(directory, name)
        if self._change_time(path) is None:
            self._must_not_appear(*((directory, name) if name[:1] != "/" else (path, "")))
            return
        self.present[path] = None
        index, rest = includes.place(path, self.search)
        self.answers.add(f"{self.search[index].label if index >= 0 else ''}/{rest}")

    def _change_time(self, path: str) -> int | None:
        if path not in self._changed_ns:
            try:
                status = os.stat(path)
            except OSError:
                self._changed_ns[path] = None
            else:
                self._changed_ns[path] = status.st_ctime_ns
                if not os.path.isdir(path):
                    self.newest_ns = max(self.newest_ns, status.st_ctime_ns)
        return self._changed_ns[path]


def _read(path: str, search: Sequence[SearchDir]) -> tuple[bytes, Header]:
    with open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())  # before the bytes: a change after it shows next time
        data = file.read()
    index, relative = includes.place(path, search)
    return data, Header(
        path=path,
        label=search[index].label if index >= 0 else "",
        relative=relative,
        digest=content_digest(data),
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        inode=status.st_ino,
    )


def _distrust(header: Header, now_ns: int) -> Header:
    """Forget the times of a header that could still change without changing them.

    Two edits within one tick of the clock leave one time; without a time the next check reads.
    """
    if max(header.mtime_ns, header.ctime_ns) < now_ns:
        return header
    return header._replace(mtime_ns=0, ctime_ns=0)


def same(dependencies: Dependencies) -> bool:
    """Say by stat alone whether every file is as it was recorded. 392 headers: 0.6 ms."""
    stat = os.stat
    try:
        for path, _, _, _, size, mtime_ns, ctime_ns, inode in dependencies.headers:
            status = stat(path)
            if (
                status.st_mtime_ns != mtime_ns
                or status.st_ctime_ns != ctime_ns
                or status.st_size != size
                or status.st_ino != inode
            ):
                return False
    except OSError:
        return False
    return _probes_hold(dependencies)


def _probes_hold(dependencies: Dependencies) -> bool:
    # access() answers without raising: half the time of a stat that fails.
    return not any(map(os.access, dependencies.absent, repeat(os.F_OK))) and all(
        map(os.access, dependencies.present, repeat(os.F_OK))
    )


def refresh(dependencies: Dependencies) -> Dependencies | None:
    """Return the dependencies with today's stats if every content is as recorded, else None."""
    if not _probes_hold(dependencies):
        return None
    headers = []
    for header in dependencies.headers:
        fresh = _again(header)
        if fresh is None or fresh.digest != header.digest:
            return None
        headers.append(fresh)
    return replace(dependencies, headers=tuple(headers))


def _again(header: Header) -> Header | None:
    """Return the header as it is now; read only if its stat differs; None if it cannot be read."""
    try:
        status = os.stat(header.path)
        now = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        if now == header[4:]:
            return header
        tick = file_clock_ns()
        _, fresh = _read(header.path, ())
    except OSError:
        return None
    return _distrust(fresh._replace(label=header.label, relative=header.relative), tick)


def unchanged(dependencies: Dependencies) -> bool:
    """Say whether the same build would read the same bytes: by stat, and by digest where it differs."""
    return same(dependencies) or refresh(dependencies) is not None


def difference(dependencies: Dependencies) -> str:
    """Return in words the first thing that differs: ``"header /x/foo.h changed"``; ``""`` if none."""
    for header in dependencies.headers:
        fresh = _again(header)
        if fresh is None:
            return f"header {header.path} is gone"
        if fresh.digest != header.digest:
            return f"header {header.path} changed"
    for path in dependencies.absent:
        if os.access(path, os.F_OK):
            return f"{path} is new and comes first in the search, or answers a __has_include"
    for path in dependencies.present:
        if not os.access(path, os.F_OK):
            return f"{path.removesuffix('/.')} is gone"
    return ""
