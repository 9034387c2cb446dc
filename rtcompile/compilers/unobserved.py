"""Makes a `FileSet` of a build whose compiler reports only the files that it read, or none.

NVCC and the include trace of an NVRTC whose calls cannot be intercepted report neither the paths that were not found
nor the results of ``__has_include``. So the entries of every searched folder are recorded, and of the folders below
them that a source can name. Toolkit folders are left out, since the toolchain's signature covers them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence

from rtcompile.compilers.observed import Dependencies
from rtcompile.files import fileset
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import FOLDER, SearchDir, changed_ns, lies_below
from rtcompile.request.cxx import scan

# Suffixes of files that programs write next to a source. They count only if a text mentions the suffix.
_NO_HEADERS = (
    ".a .bin .cc .cpp .csv .cu .cubin .json .log .md .npy .npz .o .out .pkl .png .pt .ptx .py .pyc"
    " .rst .sh .so .swp .tmp .toml .txt .yaml .yml __pycache__"
)

# Possible header names. Only an absolute one, or one with "..", leads out of the search folders.
_NAME = re.compile(r'["<]([^"<>\n\0]*)(?=[">])')
# A line with a directive, which may follow a comment. Only a directive can name a file.
_DIRECTIVE = re.compile(r"^.*(?:#|%:|\?\?=).*$", re.MULTILINE)
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
        found.is_there(path)
    return found.file_set(ways, max(found.newest_ns, _led_ns(ways)))


class _Unobserved(Dependencies):
    """The current state of the folders in which a build may have looked for files."""

    def __init__(
        self, search: Sequence[SearchDir], source: str, beside: str, toolkit: tuple[str, ...]
    ) -> None:
        super().__init__(search)
        packages = [d.path for d in search if d.label and not d.is_own]
        self._is_toolkits = lies_below((*packages, *toolkit, FOLDER))
        # Folders to which header names are relative.
        self.roots = [d.path for d in search] + [beside] * beside.startswith("/")
        self.texts = [source]  # the user's own sources, headers and options
        self.seen: dict[str, None] = {}
        self.newest_ns = 0
        self._ignored: list[str] = []  # suffixes of names that no text includes
        if len(source) <= _MAX_TEXT:
            self.doubt_clock(scan(source).clock)

    def read(self, path: str) -> None:
        """Read a header that the build read."""
        label, relative = self.locate(path)
        header, data, status = fileset.read(path, label, relative)
        self.headers[path] = header
        self.newest_ns = max(self.newest_ns, changed_ns(status))
        text = data.decode("utf-8", "surrogateescape")
        mentions = scan(text)
        if mentions.own_path:
            self.own_path[label] = None
        self.doubt_clock(mentions.clock)
        if text and header.is_own and not self._is_toolkits(os.path.dirname(path)):
            self.texts.append(text)
            self.roots.append(os.path.dirname(path))

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
        names = dict.fromkeys(_NAME.findall("\n".join(_DIRECTIVE.findall(text))))
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
