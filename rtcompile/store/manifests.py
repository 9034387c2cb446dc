"""Manifests: each lists, under a lookup key, builds and the files that they depend on.

A path is stored as the index of its search directory and the rest. Portable manifests, whose readers substitute
their own directories, have the same format.

NVCC and the include trace of an NVRTC whose calls cannot be intercepted report the files that were read, but neither
the paths that were not found nor the results of ``__has_include``. So the entries of every searched folder are
recorded, and of the folders below them that a source can name. The toolchain's signature covers the toolkit's.
"""

from __future__ import annotations

import functools
import os
import re
import stat
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rtcompile.files import fileset, sealed
from rtcompile.files.fileset import PACKED_FIELDS, FileSet, joined, texts_in
from rtcompile.files.headers import FOLDER, PROVIDED, Header, SearchDir, lies_below, relative_to

# --- The manifest's format --------------------------------------------------------------------------

MOST_BUILDS = 4  # per lookup key: enough for an edit and its revert, each with two compilers
_MOST_LISTED = 16  # of all lookup keys that share a manifest


class ManifestEntry(NamedTuple):
    """One build: its compiler, object key and dependencies, and the lookup key whose stats these have."""

    backend: str
    compiler: str
    object_key: str
    dependencies: FileSet
    found_by: str = ""  # the lookup key with which its files were found
    not_kept: str = ""  # why it was not kept; it then has neither an object nor files


def encode(key: str, builds: Sequence[ManifestEntry], search: Sequence[SearchDir]) -> bytes:
    """Return the content of the file under `key` for `builds`, the latest first."""
    split_path = relative_to(tuple(search))

    def stored(path: str) -> str:
        position, rest = split_path(path)
        return f"{position if position >= 0 else ''}:{rest}"

    fields = []
    for build in builds[:_MOST_LISTED]:
        names = (*build[:3], *build[4:])
        fields += [joined(names), *build.dependencies.moved(stored).packed(())]
    return sealed.seal("manifest", key, fields)


@functools.lru_cache(maxsize=32)  # a miss reads its manifest three times, meanwhile others theirs
def decode(key: str, data: bytes, search: tuple[SearchDir, ...]) -> list[ManifestEntry] | None:
    """Return the builds in the file found under `key`, latest first; None if it does not verify."""
    groups = _groups(key, data)
    directories = [d.path.rstrip("/") + "/" for d in search]

    def here(path: str) -> str:
        position, _, rest = path.partition(":")
        return directories[int(position)] + rest if position else rest

    builds = []
    try:
        for names, *packed in groups or ():
            backend, compiler, object_key, found_by, not_kept = texts_in(names)
            dependencies = FileSet.unpacked(packed).moved(here)
            hash(dependencies)  # raises if the fields do not fit together
            entry = ManifestEntry(backend, compiler, object_key, dependencies, found_by, not_kept)
            builds.append(entry)
    except (struct.error, StopIteration, IndexError, ValueError):
        return None
    return None if groups is None else builds


# Fields of a build: its names, then `FileSet.packed`; the positions of stat signatures and of contents.
_FIELDS = 1 + PACKED_FIELDS
_STATS, _DIGESTS = 2, 9


def objects_of(key: str, data: bytes) -> list[str]:
    """Return the object keys in a manifest, whatever the directories are."""
    return [*_by_object(key, data)]


def merged(key: str, newer: bytes, older: bytes = b"") -> bytes:
    """Return the portable manifest of two manifests' builds, the newer first, without stats."""
    newest = _by_object(key, newer)
    builds = newest | _by_object(key, older) | newest
    return _without_stats(key, [*builds.values()][:MOST_BUILDS])


def one_by_one(key: str, data: bytes) -> dict[str, bytes]:
    """Return one portable manifest per build, by object key."""
    return {name: _without_stats(key, [group]) for name, group in _by_object(key, data).items()}


def has_files_of(key: str, data: bytes, other: bytes) -> bool:
    """Return whether two manifests have a build with the same files, whatever their contents."""
    files = [_files(group) for group in _by_object(key, data).values()]
    return all(_files(group) in files for group in _by_object(key, other).values())


def _files(group: Sequence[bytes]) -> tuple[bytes, ...]:
    backend = texts_in(group[0])[0].encode()
    return (backend, *(group[at] for at in range(1, _FIELDS) if at not in (_DIGESTS, _STATS)))


def _without_stats(key: str, groups: Iterable[Sequence[bytes]]) -> bytes:
    fields: list[bytes] = []
    for group in groups:
        fields += [*group[:_STATS], bytes(len(group[_STATS])), *group[_STATS + 1 :]]
    return sealed.seal("manifest", key, fields)


def _by_object(key: str, data: bytes) -> dict[str, list[bytes]]:
    named = {texts_in(group[0])[2]: group for group in _groups(key, data) or () if group[0]}
    return {name: group for name, group in named.items() if name}  # builds that were kept


def _groups(key: str, data: bytes) -> list[list[bytes]] | None:
    """Return the fields of each build; None if the file does not verify."""
    fields = sealed.unseal("manifest", key, data)
    if fields is None or len(fields) % _FIELDS:
        return None
    return [fields[at : at + _FIELDS] for at in range(0, len(fields), _FIELDS)]


class Page(NamedTuple):
    """The value under a key of a shared store: a manifest of builds, and the small ones' objects by key."""

    portable_key: str  # under which the manifest is sealed
    manifest: bytes
    objects: dict[str, bytes]

    def packed(self, key: str) -> bytes:
        """Return the page as stored under `key`."""
        pairs = [each for name, data in self.objects.items() for each in (name.encode(), data)]
        return sealed.seal("page", key, [self.portable_key.encode(), self.manifest, *pairs])

    @classmethod
    def unpacked(cls, key: str, data: bytes | None) -> Page | None:
        """Return the page from `packed` data; None if it does not verify."""
        fields = sealed.unseal("page", key, data) if data is not None else None
        if not fields or len(fields) % 2:
            return None
        portable_key, *names = [name.decode("ascii", "replace") for name in fields[::2]]
        return cls(portable_key, fields[1], dict(zip(names, fields[3::2], strict=True)))


# --- Recording the files of a build -----------------------------------------------------------------

# Suffixes of files that programs write next to a source. They count only if a text mentions the suffix.
_NO_HEADERS = (
    ".a .bin .cc .cpp .csv .cu .cubin .json .log .md .npy .npz .o .out .pkl .png .pt .ptx .py .pyc"
    " .rst .sh .so .swp .tmp .toml .txt .yaml .yml __pycache__"
)

# Possible header names. Only an absolute one, or one with "..", leads out of the search folders.
_NAME = re.compile(r'["<]([^"<>\n\0]*)(?=[">])')
_COMPUTED_OUTWARD = re.compile(r"^[ \t]*(?:#|%:)(?![ \t]*error).*\.\./", re.MULTILINE)
_SPLICE = re.compile(r"(?:\\|\?\?/)[ \t]*\r?\n")

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

    `source` contains everything that the user wrote: source, headers passed as strings, and options, which may
    define macros. `toolkit` are the folders of the headers that come with the compilers, besides those of `search`.
    However a path to such a header is spelled, it is not searched for names, and its folder is not watched.
    """
    from rtcompile.request.cxx import scan  # a hit does not need it

    beside = os.path.dirname(name)
    packages = [d.path for d in search if d.label and not (d.is_own or d.is_provided)]
    is_toolkits = lies_below((*packages, *toolkit, FOLDER))
    watched = _Watched(is_toolkits)
    watched.roots = [d.path for d in search] + [beside] * beside.startswith("/")
    watched.texts = [source]
    if len(source) <= _MAX_TEXT and (clock := scan(source).clock):
        watched.doubt(f"{clock} is different in every build")
    split_path = relative_to(tuple(search))
    headers: list[Header] = []
    own_path: dict[str, None] = {}
    for path in dict.fromkeys(trace):
        if not path.startswith("/"):
            return FileSet(uncacheable=f"header {path} was found by a relative path")
        position, relative = split_path(path)
        label = search[position].label if position >= 0 else ""
        try:
            header, data, status = fileset.read(path, label, relative)
        except OSError as error:
            return FileSet(uncacheable=f"header {path} cannot be read: {error.strerror or error}")
        headers.append(header)
        watched.newest_ns = max(watched.newest_ns, fileset.changed_ns(status))
        text = data.decode("utf-8", "surrogateescape")
        mentions = scan(text)
        if mentions.own_path:
            own_path[label] = None
        if mentions.clock:
            watched.doubt(f"{mentions.clock} is different in every build")
        is_users = header.is_own or label.startswith(PROVIDED)
        if text and is_users and not is_toolkits(os.path.dirname(path)):
            watched.texts.append(text)
            watched.roots.append(os.path.dirname(path))
    watched.look()
    include_results = []
    for path in watched.present:
        position, rest = split_path(path)
        include_results.append(f"{search[position].label if position >= 0 else ''}/{rest}")
    ways = [*(header.path for header in headers), *watched.seen, *watched.present]
    return FileSet(
        tuple(headers),
        absent=tuple(watched.absent),
        present=tuple(watched.present),
        include_results=tuple(sorted(include_results)),
        newest_ns=max(watched.newest_ns, _led_ns(ways)),
        own_path=tuple(own_path),
        uncacheable=watched.problem or fileset.volatile(ways),
    )


class _Watched:
    """The current state of the folders in which a build may have looked for files."""

    def __init__(self, is_toolkits: Callable[[str], bool]) -> None:
        self.roots: list[str] = []  # folders to which header names are relative
        self.texts: list[str] = []  # the user's own sources, headers and options
        self.seen: dict[str, None] = {}
        self.absent: dict[str, None] = {}
        self.present: dict[str, None] = {}
        self.newest_ns = 0
        self.problem = ""
        self._is_toolkits = is_toolkits
        self._ignored: list[str] = []  # suffixes of names that no text includes

    def doubt(self, problem: str) -> None:
        self.problem = self.problem or problem

    def look(self) -> None:
        """Record all of `roots`, the folders below them, and names that lead out of them."""
        if sum(map(len, self.texts)) > _MAX_TEXT:
            self.doubt("its sources are too long to be searched for the folders that they may name")
            return
        text = _SPLICE.sub("", "\n".join(self.texts))
        self._ignored = [suffix for suffix in _NO_HEADERS.split() if suffix not in text]
        roots = [root.rstrip("/") for root in dict.fromkeys(self.roots)]
        roots = [root for root in roots if not self._is_toolkits(root)]
        for root in roots:
            self._walk(root, text)
        names = dict.fromkeys(_NAME.findall(text))
        for name in [name for name in names if name[:1] == "/" or "../" in name]:
            for path in [name] if name[0] == "/" else [f"{root}/{name}" for root in roots]:
                self._note(path)
        if _COMPUTED_OUTWARD.search(_NAME.sub("", text)):
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
        self.newest_ns = max(self.newest_ns, fileset.changed_ns(os.stat(path)))


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
                    newest = max(newest, fileset.changed_ns(status))
                    ahead.append(os.path.join(os.path.dirname(path), os.readlink(path)))
                elif stat.S_ISDIR(status.st_mode) and status.st_ctime_ns != status.st_mtime_ns:
                    newest = max(newest, fileset.changed_ns(status))
            except OSError:
                pass  # a missing folder: the absent paths in it are checked
            path = os.path.dirname(path)
    return newest
