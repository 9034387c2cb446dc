"""Makes a `FileSet` of the files that a build read or looked for.

`file_set` is for file accesses of NVRTC that `workers.probes` recorded. If a file has changed after the build,
`newest_ns` is the current time, and the build is not cached.

`record` is for a compiler that reports only the files that it read, or none: NVCC, and an NVRTC whose calls cannot be
intercepted. These report neither the paths that were not found nor the results of ``__has_include``. So the entries
of every searched folder are recorded, and of the folders below them that a source can name. Toolkit folders are left
out, since the toolchain's signature covers them.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rtcompile.files import fileset
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import (
    FOLDER,
    IN_JOB,
    Header,
    SearchDir,
    changed_ns,
    lies_below,
    relative_to,
    trusted,
)
from rtcompile.request.cxx import scan
from rtcompile.request.units import TranslationUnit
from rtcompile.workers import probes

_OWN_PATH, _CLOCK = 1, 2  # of `probes.mentions`


def job_fields(
    unit: TranslationUnit, options: Iterable[str], search: Sequence[SearchDir] = ()
) -> dict[str, Any]:
    """Return a unit as fields of a job for `workers.libraries` and `workers.probes`."""
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


class _Dependencies:
    """The files of a build as they become known, with the labels of the search directories that they are in."""

    def __init__(self, search: Sequence[SearchDir], before: FileSet) -> None:
        self._search, self._split_path = search, relative_to(tuple(search))
        self.headers = {header.path: header for header in before.headers}
        self.by_inode = {header.inode: header for header in before.headers}
        self.absent, self.present = dict.fromkeys(before.absent), dict.fromkeys(before.present)
        self.include_results = {*before.include_results}
        self.own_path = dict.fromkeys(before.own_path)
        self.newest_ns = 0
        self.problem = ""

    def doubt(self, problem: str) -> None:
        """Note why the build is not cached, unless another reason is known."""
        self.problem = self.problem or problem

    def locate(self, path: str) -> tuple[str, str]:
        """Return the label of the directory of a file, and its path below it."""
        position, relative = self._split_path(path)
        return self._search[position].label if position >= 0 else "", relative

    def note_present(self, path: str) -> None:
        """Note a path that exists, and that a ``__has_include`` may have found."""
        label, rest = self.locate(path)
        self.present[path] = None
        # Because of ``#pragma once``, a compiler does not read a file again under another path.
        with suppress(OSError):
            header = self.by_inode.get(os.stat(path).st_ino)
            if header is not None and os.path.samefile(path, header.path):
                other = header._replace(path=path, label=label, relative=rest)
                self.headers.setdefault(path, other)
        self.include_results.add(f"{label}/{rest}")

    def note_read(self, header: Header, *, mentions_path: bool, clock: str) -> None:
        """Note a header, whether it may put its path into the code, and the clock macro in it."""
        self.headers[header.path] = self.by_inode[header.inode] = header
        if mentions_path:
            self.own_path[header.label] = None
        self.note_clock(clock)

    def note_clock(self, clock: str) -> None:
        """Note the clock macro in a text of the build, if any."""
        if clock:
            self.doubt(f"{clock} is different in every build")

    def file_set(self, looked_for: Iterable[str]) -> FileSet:
        """Return the dependencies as a set, which is uncacheable if one of the paths `looked_for` is volatile."""
        return FileSet(
            tuple(self.headers.values()),
            absent=tuple(self.absent),
            present=tuple(self.present),
            include_results=fileset.with_links(self.include_results, self.headers.values()),
            newest_ns=self.newest_ns,
            own_path=tuple(self.own_path),
            uncacheable=self.problem or fileset.volatile(looked_for),
        )


# --- The files of NVRTC, whose accesses were recorded ----------------------------------------------


def file_set(seen: Mapping[str, Any], search: Sequence[SearchDir], *, before: FileSet) -> FileSet:
    """Return a compile's file set, from the result of `probes.end` and a precompiled header's files."""
    if before.is_empty and not any(value for name, value in seen.items() if name != "begun_ns"):
        return FileSet()  # as of most small kernels
    toolkit = tuple(f"{each.path.rstrip('/')}/" for each in search if not each.is_own)
    found = _Dependencies(search, before)
    found.problem = seen["problem"]
    has_changed = False
    for name, *stats, digest, mentioned in seen["opened"]:  # some only for a ``__has_include``
        path = os.fsdecode(name)
        try:
            if not digest:
                digest, mentioned = _digest(path, *stats)
        except OSError:
            has_changed = True
        header = Header(path, *found.locate(path), digest, *stats[:4])
        has_changed = has_changed or found.headers.get(path, header).digest != digest
        clock = ""
        if mentioned & _CLOCK and not found.problem:
            clock, has_moved = _clock(path, digest)
            has_changed = has_changed or has_moved
        header = trusted(header, seen["begun_ns"], toolkit)
        found.note_read(header, mentions_path=bool(mentioned & _OWN_PATH), clock=clock)
    for name in seen["files"]:
        found.note_present(os.fsdecode(name))
    found.present.update((f"{os.fsdecode(name)}/.", None) for name in seen["folders"])
    gaps = _gaps(seen["absent"], [directory.path.rstrip("/") for directory in search])
    found.absent.update(dict.fromkeys(gaps))
    looked_for = [name for name, *_ in seen["opened"]]
    looked_for += [*seen["files"], *seen["folders"], *seen["absent"]]
    own = [path for path in map(os.fsdecode, looked_for) if not path.startswith(toolkit)]
    files = found.file_set(own)
    current = None if has_changed else files.current()
    if current is None:
        files.newest_ns = time.time_ns()
        return files
    return current


@functools.lru_cache(maxsize=8192)
def _digest(path: str, *stats: int) -> tuple[str, int]:
    """Return a toolkit header's digest and mentions; OSError if it changed since the compile."""
    header, data, status = fileset.read(path, "", "")
    if probes.signature(status) != stats:
        raise FileNotFoundError(path)
    return header.digest, probes.mentions(data)


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


# --- The files of a compiler that reports at most which files it read ---------------------------------

# Suffixes of files that programs write next to a source. They count only if a text mentions the suffix.
_NO_HEADERS = (
    ".a .bin .cc .cpp .csv .cu .cubin .json .log .md .npy .npz .o .out .pkl .png .pt .ptx .py .pyc"
    " .rst .sh .so .swp .tmp .toml .txt .yaml .yml __pycache__"
)

# Patterns, which are compiled only if a build is not observed.
# Possible header names. Only an absolute one, or one with "..", leads out of the search folders.
_NAME = r'["<]([^"<>\n\0]*)(?=[">])'
# A line with a directive, which may follow a comment. Only a directive can name a file.
_DIRECTIVE = r"(?m)^.*(?:#|%:|\?\?=).*$"
_COMPUTED_OUTWARD = r"(?m)^[ \t]*(?:#|%:)(?![ \t]*error).*\.\./"
_SPLICE = r"(?:\\|\?\?/)[ \t]*\r?\n"

_MAX_FOLDERS = 2048
_MAX_TEXT = 32 << 20  # searching a longer text would take seconds, which no time limit would count
_PASTES = ("##", "%:%:", "??=")


def record(
    trace: Iterable[str],
    search: Sequence[SearchDir],
    *,
    source: str = "",
    name: str = "",
    toolkit: tuple[str, ...] = (),
) -> FileSet:
    """Read, hash and stat the headers that a build read, and list the folders that it searched.

    `source` contains everything that the user wrote: source, headers passed as strings, and options as directives,
    since they may define macros. `toolkit` are the folders of the headers that come with the compilers, besides those
    of `search`. Headers in toolkit folders are not searched for names, however their paths are spelled, and these
    folders are not recorded.
    """
    found = _Unobserved(search, source, os.path.dirname(name), toolkit)
    for path in dict.fromkeys(trace):
        if not path.startswith("/"):
            return FileSet(uncacheable=f"header {path} was found by a relative path")
        try:
            found.read(path)
        except OSError as error:
            return FileSet(uncacheable=f"header {path} cannot be read: {error.strerror or error}")
    found.look()
    ways = [*found.headers, *found.seen, *found.present]
    for path in [*found.present]:
        found.note_present(path)
    found.newest_ns = max(found.newest_ns, _led_ns(ways))
    return found.file_set(ways)


class _Unobserved(_Dependencies):
    """The current state of the folders in which a build may have looked for files."""

    def __init__(
        self, search: Sequence[SearchDir], source: str, beside: str, toolkit: tuple[str, ...]
    ) -> None:
        super().__init__(search, FileSet())
        packages = [d.path for d in search if d.label and not d.is_own]
        self._is_toolkits = lies_below((*packages, *toolkit, FOLDER))
        # Folders to which header names are relative.
        self.roots = [d.path for d in search] + [beside] * beside.startswith("/")
        self.texts = [source]  # the user's own sources, headers and options
        self.seen: dict[str, None] = {}
        self._ignored: list[str] = []  # suffixes of names that no text includes
        if len(source) <= _MAX_TEXT:
            self.note_clock(scan(source).clock)

    def read(self, path: str) -> None:
        """Note a header that the build read, in its current state."""
        header, data, status = fileset.read(path, *self.locate(path))
        self.newest_ns = max(self.newest_ns, changed_ns(status))
        text = data.decode("utf-8", "surrogateescape")
        mentions = scan(text)
        self.note_read(header, mentions_path=mentions.own_path, clock=mentions.clock)
        if text and header.is_own and not self._is_toolkits(os.path.dirname(path)):
            self.texts.append(text)
            self.roots.append(os.path.dirname(path))

    def look(self) -> None:
        """Record all of `roots`, the folders below them, and names that lead out of them."""
        if sum(map(len, self.texts)) > _MAX_TEXT:
            self.doubt("its sources are too long to be searched for the folders that they may name")
            return
        text = re.sub(_SPLICE, "", "\n".join(self.texts))
        self._ignored = [suffix for suffix in _NO_HEADERS.split() if suffix not in text]
        roots = [root.rstrip("/") for root in dict.fromkeys(self.roots)]
        roots = [root for root in roots if not self._is_toolkits(root)]
        for root in roots:
            self._walk(root, text)
        names = dict.fromkeys(re.findall(_NAME, "\n".join(re.findall(_DIRECTIVE, text))))
        for name in [name for name in names if name[:1] == "/" or "../" in name]:
            for path in [name] if name[0] == "/" else [f"{root}/{name}" for root in roots]:
                self._note(path)
        if re.search(_COMPUTED_OUTWARD, re.sub(_NAME, "", text)):
            self.doubt("a macro may include a file outside of the folders that are searched")

    def _walk(self, root: str, text: str) -> None:  # noqa: C901  # one walk, a branch for each kind of entry
        """Record the entries of a folder, and of folders below it whose names a text mentions or may paste."""
        pastes = not root.startswith("/usr/") and any(word in text for word in _PASTES)
        ahead = [root]
        while ahead:
            folder = ahead.pop()
            if folder in self.seen or self._is_toolkits(folder):
                continue
            if len(self.seen) >= _MAX_FOLDERS:
                self.doubt(f"{root} has too many folders in which a header could appear")
                return
            self.seen[folder] = None
            try:
                self.present[fileset.listing(folder, ",".join(self._ignored))] = None
                with os.scandir(folder) as found:
                    entries = [*found]
            except (FileNotFoundError, NotADirectoryError):
                self._note(f"{folder}/.")
                continue
            except OSError as error:
                self.doubt(f"{folder} may not be read: {error.strerror}")
                continue
            self._changed(folder)
            for entry in entries:
                if entry.name.endswith(tuple(self._ignored)):
                    continue
                if entry.is_symlink():
                    self._note(entry.path)
                elif entry.inode() in self.by_inode and entry.path not in self.headers:
                    self.present[entry.path] = None  # it may be a hard link to a header
                if entry.is_dir():
                    ahead += [entry.path] * (pastes or entry.name in text)
                elif not os.access(entry.path, os.R_OK) and os.path.exists(entry.path):
                    self.doubt(f"{entry.path} comes first in the search and may not be read")

    def _note(self, path: str) -> None:
        """Record whether a path is a file, a folder or missing."""
        if os.path.exists(path):
            self.present[f"{path}/." if os.path.isdir(path) else path] = None
        else:
            self.absent[path] = None
        while not os.path.exists(path):
            path = os.path.dirname(path)
        self._changed(path)

    def _changed(self, path: str) -> None:
        self.newest_ns = max(self.newest_ns, changed_ns(os.stat(path)))


def _led_ns(paths: Iterable[str]) -> int:
    """Return when a link or folder on these paths was last redirected or replaced."""
    # A header keeps its times then. A new link has a new time. A renamed folder has a ctime later than its mtime,
    # while changes of its entries set both to the same time.
    newest = 0
    looked: set[str] = set()
    ahead = [*paths]
    while ahead:
        path = ahead.pop()
        while path not in looked and path.startswith("/"):
            looked.add(path)
            try:
                status = os.lstat(path)
                if stat.S_ISLNK(status.st_mode):
                    newest = max(newest, changed_ns(status))
                    ahead.append(os.path.join(os.path.dirname(path), os.readlink(path)))
                elif stat.S_ISDIR(status.st_mode) and status.st_ctime_ns != status.st_mtime_ns:
                    newest = max(newest, changed_ns(status))
            except OSError:
                pass  # a missing folder: the absent paths in it are checked
            path = os.path.dirname(path)
    return newest
