"""Records which files a build read, and which it would have read first had they been there."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from rtcompile.core import includes
from rtcompile.core.header import Header, SearchDir
from rtcompile.lookup import clocks, fileset
from rtcompile.lookup.fileset import FileSet
from rtcompile.storage.digest import stat_of

if TYPE_CHECKING:
    from rtcompile.core.mentions import Mentions


def record(
    trace: Iterable[str],
    search: Sequence[SearchDir],
    *,
    source: str = "",
    name: str = "",
) -> FileSet:
    """Read, hash and stat the headers of a build, and note the files that must not appear.

    This is for NVCC, and for an NVRTC that cannot be observed (`compilers.observed`). `trace` has
    the paths that the compiler read, as it spelled them. The own includes and ``__has_include`` of
    `source` are looked at too. `uncacheable` is set if they cannot be checked later.
    """
    from rtcompile.core.mentions import scan  # a hit needs none of its regular expressions

    return _record(tuple(trace), search, scan(source), os.path.dirname(name))


def _led_ns(trace: Iterable[str], search: Sequence[SearchDir]) -> int:
    """Return when a link or a folder on the way to these files last came to lead elsewhere.

    A header keeps its times when ``current -> v1`` becomes ``current -> v2``, or when another folder
    takes the place of its own. A link is new then, and a folder that was renamed has been changed
    since something in it was: what comes and goes in it changes both of its times to the same.
    """
    newest = 0
    looked: set[str] = set()
    ahead = [*trace, *(directory.path for directory in search)]
    while ahead:
        path = ahead.pop()
        while path not in looked and path.startswith("/"):
            looked.add(path)
            try:
                status = os.lstat(path)
                if stat.S_ISLNK(status.st_mode):
                    newest = max(newest, clocks.changed_ns(status))
                    ahead.append(os.path.join(os.path.dirname(path), os.readlink(path)))
                elif stat.S_ISDIR(status.st_mode) and status.st_ctime_ns != status.st_mtime_ns:
                    newest = max(newest, clocks.changed_ns(status))
            except OSError:
                pass  # a folder that does not exist: what must not appear there is looked for
            path = os.path.dirname(path)
    return newest


def _record(
    trace: Sequence[str],
    search: Sequence[SearchDir],
    own: Mentions,
    own_directory: str,
) -> FileSet:
    from rtcompile.core.mentions import scan

    headers: list[Header] = []
    changed: list[int] = []
    own_path: dict[str, None] = {}
    texts: list[tuple[str, Mentions]] = [(own_directory, own)]
    read = dict.fromkeys(trace)
    place = includes.placing(search)
    for path in read:
        if not path.startswith("/"):
            return FileSet(uncacheable=f"header {path} was found by a relative path")
        position, relative = place(path)
        label = search[position].label if position >= 0 else ""
        try:
            header, mentions, changed_ns = _read(path, label, relative, scan)
        except OSError as error:
            return FileSet(uncacheable=f"header {path} cannot be read: {error.strerror or error}")
        headers.append(header)
        changed.append(changed_ns)
        texts.append((os.path.dirname(path), mentions))
        if mentions.own_path:
            own_path[header.label] = None

    probes = _Probes(search)
    # A macro may have included any of the headers.
    names = (
        []
        if not any(said.computed for _, said in texts)
        else [name for path in read for _, name in includes.spellings(path, search)]
    )
    for header in headers:
        for position, name in includes.spellings(header.path, search):
            for directory in probes.directories[:position]:
                probes.must_not_appear(directory, name)
    uncacheable = ""
    for directory, mentions in texts:
        if directory.startswith("/"):  # the compiler's own working directory is empty
            for quoted in (*mentions.quoted, *(names if mentions.computed else ())):
                if f"{directory}/{quoted}" not in read:
                    probes.must_not_appear(directory, quoted)
        for asked in mentions.asked:
            if asked[0] in '<"' and "##" not in asked:
                probes.ask(directory if asked[0] == '"' else "", asked[1:-1])
            else:
                uncacheable = f"what __has_include({asked}) asks for is computed"
        if mentions.clock:
            uncacheable = f"{mentions.clock} is different in every build"

    if probes.unreadable:  # the compiler went on to the next directory
        uncacheable = f"{probes.unreadable} comes first in the search and may not be read"
    looked_in = [f"{directory.path}/" for directory in search if directory.is_own]
    uncacheable = uncacheable or fileset.volatile([*looked_in, f"{own_directory}/", *read])
    changed += [probes.newest_ns, _led_ns([*trace, *probes.found()], search)]
    return FileSet(
        tuple(headers),
        absent=tuple(probes.absent),
        present=tuple(probes.present),
        answers=tuple(sorted(probes.answers)),
        newest_ns=max(changed),
        own_path=tuple(own_path),
        uncacheable=uncacheable,
    )


class _Probes:
    """The paths that must stay absent or present for a build's result to stay the same."""

    def __init__(self, search: Sequence[SearchDir]) -> None:
        self.directories = [directory.path.rstrip("/") for directory in search]
        self.absent: dict[str, None] = {}
        self.present: dict[str, None] = {}
        self.answers: set[str] = set()
        self.newest_ns = 0
        self.unreadable = ""
        self._search = search
        self._looked: set[tuple[str, str]] = set()
        self._there: dict[str, bool] = {}

    def must_not_appear(self, directory: str, name: str) -> None:
        """Note the first missing ancestor folder, which stands for all below (CuTe: 770)."""
        if (directory, name) in self._looked:
            return
        self._looked.add((directory, name))
        path = directory
        for part in (".", *name.split("/")):
            path = f"{path}/{part}" if part != "." else path
            probe = f"{path}/." if part == "." else path
            if not self._exists(probe):
                self.absent[probe] = None
                return
        if os.path.isdir(path):  # a folder is no header, but a file could replace it
            self.present[f"{path}/."] = None
        elif not os.access(path, os.R_OK):
            self.unreadable = path

    def ask(self, own_directory: str, name: str) -> None:
        """Note what every directory has: ``__has_include_next`` does not begin at the first."""
        own = [own_directory] if own_directory.startswith("/") else []
        for directory in [""] if name.startswith("/") else [*own, *self.directories]:
            path = f"{directory}/{name}" if directory else name
            if self._exists(path):
                self.present[f"{path}/." if os.path.isdir(path) else path] = None
                position, rest = includes.place(path, self._search)
                label = self._search[position].label if position >= 0 else ""
                self.answers.add(f"{label}/{rest}")
            else:
                self.must_not_appear(directory, name)

    def found(self) -> list[str]:
        """Return the paths that exist."""
        return [path for path, there in self._there.items() if there]

    def _exists(self, path: str) -> bool:
        there = self._there.get(path)
        if there is None:
            try:
                status = os.stat(path)
            except OSError:
                there = False
            else:
                there = True
                if not os.path.isdir(path):
                    self.newest_ns = max(self.newest_ns, clocks.changed_ns(status))
            self._there[path] = there
        return there


# Memo of headers by path, since a process's builds share the toolkit's headers. Reading, hashing
# and scanning CuTe's takes 60 ms, a stat of each 1 ms.
_read_before: dict[str, tuple[Header, Mentions, int]] = {}
_MOST_READ = 8192


def _read(
    path: str, label: str, relative: str, scan: Callable[[str], Mentions]
) -> tuple[Header, Mentions, int]:
    before = _read_before.get(path)
    if before is not None and stat_of(os.stat(path)) == before[0][4:]:
        header, mentions, changed_ns = before
        return header._replace(label=label, relative=relative), mentions, changed_ns
    header, data, status = fileset.read(path, label, relative)
    mentions = scan(data.decode("utf-8", "surrogateescape"))
    if len(_read_before) >= _MOST_READ:
        _read_before.clear()
    found = _read_before[path] = header, mentions, clocks.changed_ns(status)
    return found
