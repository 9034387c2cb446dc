"""`FileSet`: the files that a result depends on, and the check whether they are unchanged.

A `FileSet` has the headers that were read, the paths where nothing may appear, and those that must exist. A cache
hit checks the packed form directly: the stat signatures of CuTe's 392 headers take half a millisecond. The user's
own files and the toolkit's are packed separately, because the toolkit's are checked at most once a second. This
module imports only what a hit needs.
"""

from __future__ import annotations

import os
import struct
import time

from rtcompile.files import sealed
from rtcompile.files.sealed import content_digest, stat_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from rtcompile.files.headers import Header

_STAT = struct.Struct("<4q")  # the result of `stat_of`
_PART = 4  # number of fields for the user's own files, and again for the provided ones
_OWN, _PROVIDED = slice(0, _PART), slice(_PART, 2 * _PART)
PACKED_FIELDS = 2 * _PART + 4
DIGESTS = 2 * _PART  # the field with the digests of the headers' contents

# Paths below these differ between processes (``/proc/self/cwd``, ``/dev/fd/3``), or change while their stat stays
# the same.
_VOLATILE = ("/proc/", "/sys/", "/dev/fd/")

_FOLDER = "/."  # ends a path that must be a folder
_LISTED = "/.="  # separates a folder from the digest of its entries, see `listing`
_ONE_FILE = "one file: "  # begins the names of two headers that are one file, see `with_links`
_KIND_BITS, _FOLDER_BITS = 0o170000, 0o040000  # of a file's mode

_RECENT_SECONDS = 1.0
_MAX_REMEMBERED = 256
_MAX_READ = 8192

# Maps the packed fields of provided files to the time (monotonic clock) at which they were found unchanged.
_recently_validated: dict[tuple[bytes, ...], float] = {}

# Headers that were read to compare them, by label, name and path; many builds share them.
_read: dict[tuple[str, str, str], Header] = {}


def _restored(at: int) -> Any:
    return property(lambda files: files._restored()[at])


class FileSet:
    """Everything that a result depends on besides the request and the compiler.

    `headers` are in order of first inclusion. `absent` are paths that must not exist: the first folder that does
    not exist stands for all below it. `present` are paths that must exist, though they were not read: as a folder
    if they end in ``/.``; `listing` returns a path that also fixes a folder's entries. `include_results` are the
    ``__has_include`` candidates that exist, as a directory's label and a name, and the pairs of `with_links`.
    `own_path` has the labels of the headers that mention ``__FILE__`` or the like. Two attributes are not packed:
    `newest_ns`, the latest change time of these files (ns since the epoch), and `uncacheable`, the reason against
    caching the build, or ``""``.
    """

    __slots__ = ("_fields", "_provided", "_values", "newest_ns", "uncacheable")

    def __init__(
        self,
        headers: tuple[Header, ...] = (),
        absent: tuple[str, ...] = (),
        present: tuple[str, ...] = (),
        include_results: tuple[str, ...] = (),
        newest_ns: int = 0,
        own_path: tuple[str, ...] = (),
        uncacheable: str = "",
    ) -> None:
        self._values: tuple[Any, ...] | None = (headers, absent, present, include_results, own_path)
        self._fields: Sequence[bytes] = ()
        self._provided: tuple[str, ...] = ()
        self.newest_ns = newest_ns
        self.uncacheable = uncacheable

    @classmethod
    def unpacked(cls, fields: Sequence[bytes]) -> FileSet:
        """Return the set of `packed` fields; raise `ValueError` if they are invalid."""
        if len(fields) != PACKED_FIELDS or any(
            len(part[1]) != _STAT.size * part[0].count(b"\0")
            for part in (fields[_OWN], fields[_PROVIDED])
        ):
            raise ValueError("not the fields of a set of files")
        new = cls()
        new._values = None
        new._fields = fields
        return new

    headers: tuple[Header, ...] = _restored(0)
    absent: tuple[str, ...] = _restored(1)
    present: tuple[str, ...] = _restored(2)
    include_results: tuple[str, ...] = _restored(3)
    own_path: tuple[str, ...] = _restored(4)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was read or looked for."""
        return not any(self._fields if self._values is None else self._values)

    def __eq__(self, other: object) -> bool:
        """Return whether two sets are equal, ignoring when they were recorded."""
        if not isinstance(other, FileSet):
            return NotImplemented
        return self._restored() == other._restored() and self.uncacheable == other.uncacheable

    def __hash__(self) -> int:
        return hash(self._restored())

    def replaced(self, **changes: Any) -> FileSet:
        """Return a copy with some attributes replaced."""
        names = ("headers", "absent", "present", "include_results", "own_path")
        given = {name: getattr(self, name) for name in (*names, "newest_ns", "uncacheable")}
        new = FileSet(**{**given, **changes})
        new._provided = self._provided
        return new

    def joined(self, other: FileSet) -> FileSet:
        """Return a set that is unchanged if both are."""
        names = ("headers", "absent", "present")
        both = {
            name: tuple(dict.fromkeys(getattr(self, name) + getattr(other, name))) for name in names
        }
        results = with_links(self.include_results, both["headers"])
        problem = self.uncacheable or other.uncacheable
        return self.replaced(**both, include_results=results, uncacheable=problem)

    def moved(self, move: Callable[[str], str]) -> FileSet:
        """Return the packed set with each path replaced by `move(path)`."""
        if self.is_empty:
            return self
        fields = self.packed(())
        for at in (0, 2, 3, _PART, _PART + 2, _PART + 3):
            fields[at] = joined(map(move, texts_in(fields[at])))
        return FileSet.unpacked(fields)

    def without_stats(self) -> FileSet:
        """Return the packed set for other machines, where the files have other times."""
        fields = self.packed(())
        for at in (1, _PART + 1):
            fields[at] = bytes(len(fields[at]))
        return FileSet.unpacked(fields)

    # --- checking ------------------------------------------------------------------------

    def is_unchanged(self, recent: bool = False) -> bool:
        """Return whether all is unchanged, by stat alone; `recent` trusts a check of the toolkit's files for 1 s."""
        if self.is_empty:
            return True
        fields = self.packed(self._provided)
        if not _is_part_unchanged(*fields[_OWN]):
            return False
        provided = tuple(fields[_PROVIDED])
        if not any(provided):
            return True
        now = time.monotonic()
        if recent and now - _recently_validated.get(provided, float("-inf")) < _RECENT_SECONDS:
            return True
        if not _is_part_unchanged(*provided):
            _recently_validated.pop(provided, None)
            return False
        if len(_recently_validated) >= _MAX_REMEMBERED:
            _recently_validated.clear()
        _recently_validated[provided] = now
        return True

    def current(self) -> FileSet | None:
        """Return the set with current stats if the build would read the same bytes now, else None."""
        return self if self.is_unchanged() else self._compared()[0]

    def difference(self) -> str:
        """Describe the first difference, ``"header /x/foo.h changed"``; ``""`` if there is none."""
        return self._compared()[1]

    def with_contents_here(self) -> FileSet | None:
        """Return the set with its files' current contents; None if a file was added or is gone."""
        return self._compared(contents=False)[0]

    def _compared(self, *, contents: bool = True) -> tuple[FileSet | None, str]:
        """Return the set with current stats, or None and the difference; ``contents=False`` ignores edited contents."""
        headers = []
        for header in self.headers:
            fresh = _read_again(header)
            if fresh is None:
                return None, f"header {header.path} is gone"
            if contents and fresh.digest != header.digest:
                return None, f"header {header.path} changed"
            headers.append(fresh)
        results = with_links(self.include_results, headers)
        if contents and results != self.include_results:
            pair = min({*results} ^ {*self.include_results}).removeprefix(_ONE_FILE)
            return None, f"{pair} are one file now, or not"
        for path in self.absent:
            if os.access(path, os.F_OK):
                why = f"new file {path} comes first in the search, or changes a __has_include"
                return None, why
        for path in self.present:
            if not _is_present(os.fsencode(path)):
                folder, listed, _ = path.partition(_LISTED)
                other = "file" if path.endswith(_FOLDER) else "folder"
                gone = f"{path.removesuffix(_FOLDER)} is gone, or became a {other}"
                searched = f"{folder}, which the compiler searched"
                return None, f"files were added to or removed from {searched}" if listed else gone
        if (tuple(headers), results) == (self.headers, self.include_results):
            return self, ""
        return self.replaced(headers=tuple(headers), include_results=results), ""

    def changed_since(self, time_ns: int) -> str:
        """Return a file or searched folder that changed since a time (ns since the epoch); "" if none did."""
        paths = [header.path for header in self.headers]
        paths += map(os.path.dirname, (*self.present, *self.absent))
        found = (os.path.realpath(_nearest(path)) for path in paths)
        return next((path for path in found if os.stat(path).st_ctime_ns >= time_ns), "")

    # --- packing -------------------------------------------------------------------------

    def packed(self, provided: tuple[str, ...]) -> list[bytes]:
        """Return the set as `PACKED_FIELDS` fields; files in `provided` folders count as the toolkit's."""
        if not self._fields or (self._values is not None and self._provided != provided):
            self._provided = provided
            self._fields = _pack(self._restored(), provided)
        return [*self._fields]

    def _restored(self) -> tuple[Any, ...]:
        if self._values is None:
            self._values = _unpack(self._fields)
        return self._values


def with_links(results: Iterable[str], headers: Iterable[Header]) -> tuple[str, ...]:
    """Return the results of ``__has_include``, and each pair of headers that are one file, for ``#pragma once``."""
    found = sorted([each for each in results if not each.startswith(_ONE_FILE)])
    first: dict[tuple[str, int], str] = {}
    for header in headers:
        name = f"{header.label}/{header.relative}"
        known = first.setdefault((header.digest, header.inode), name)
        if known is not name:
            found.append(f"{_ONE_FILE}{known} and {name}")
    return tuple(found)


def _nearest(path: str) -> str:
    """Return a path if it exists, otherwise the nearest folder above it that does."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def _is_part_unchanged(paths: bytes, stats: bytes, absent: bytes, present: bytes) -> bool:
    """Return whether the files of one packed part are as recorded, and its other paths absent or present."""
    os_stat = os.stat
    try:
        for path, (size, mtime_ns, ctime_ns, inode) in zip(
            paths.split(b"\0"), _STAT.iter_unpack(stats), strict=False
        ):
            status = os_stat(path)
            if (
                status.st_mtime_ns != mtime_ns
                or status.st_ctime_ns != ctime_ns
                or status.st_size != size
                or status.st_ino != inode
            ):
                return False
    except OSError:
        return False
    # access() raises no exception, so it takes half the time of a failing stat.
    access, exists = os.access, os.F_OK
    if any(access(path, exists) for path in absent.split(b"\0")[:-1]):
        return False
    return all(map(_is_present, present.split(b"\0")[:-1]))


def _is_present(path: bytes) -> bool:
    """Return whether a path exists, as a folder if it ends in ``/.`` and as anything else otherwise."""
    if path.endswith(b"/."):
        return os.access(path, os.F_OK)
    text = os.fsdecode(path)
    try:
        if _LISTED in text:
            folder, _, stated = text.partition(_LISTED)
            return listing(folder, stated.partition("=")[0]) == text
        return os.stat(path).st_mode & _KIND_BITS != _FOLDER_BITS
    except OSError:
        return False


def listing(folder: str, ignored: str) -> str:
    """Return the path for `FileSet.present` that records a folder's entries, except those with `ignored` suffixes."""
    suffixes, names = tuple(ignored.split(",")), []
    with os.scandir(folder) as entries:
        for entry in entries:
            if not (ignored and entry.name.endswith(suffixes)):
                kind = "link" if entry.is_symlink() else "folder" if entry.is_dir() else "file"
                names.append(f"{entry.name}\0{kind}\0")
    text = "".join(sorted(names)).encode("utf-8", "surrogateescape")
    return f"{folder}{_LISTED}{ignored}={content_digest(text)}"


def _read_again(header: Header) -> Header | None:
    """Return the current header, read only if its stat differs; None if it cannot be read."""
    path = header.path
    try:
        stat = stat_of(os.stat(path))
        if stat == header[4:]:
            return header
        which = header.label, header.relative, path
        fresh = _read.get(which)
        if fresh is None or stat != fresh[4:]:
            fresh, _, _ = read(path, header.label, header.relative)
            if len(_read) >= _MAX_READ:
                _read.clear()
            _read[which] = fresh
    except OSError:
        return None
    return fresh


def read(path: str, label: str, relative: str) -> tuple[Header, bytes, os.stat_result]:
    """Return the header at a path, its contents, and its status from before reading; raise OSError for a pipe."""
    from rtcompile.files.headers import Header, file_clock_ns, trusted

    now = file_clock_ns()
    descriptor, status = sealed.open_regular(path)
    with open(descriptor, "rb") as file:
        data = file.read()
    header = Header(path, label, relative, content_digest(data), *stat_of(status))
    return trusted(header, now), data, status


def identities(folders: Iterable[str]) -> dict[str, tuple[int, int] | None]:
    """Return device and inode of these folders and their parents, to notice replaced folders."""
    found: dict[str, tuple[int, int] | None] = {}
    for folder in folders:
        while folder.startswith("/") and folder not in found:
            try:
                status = os.stat(folder)
                found[folder] = status.st_dev, status.st_ino
            except OSError:
                found[folder] = None
            folder = os.path.dirname(folder)
    return found


def volatile(paths: Iterable[str]) -> str:
    """Return why a build that looked for these paths cannot be cached; "" if it can."""
    for folder in dict.fromkeys([path.rpartition("/")[0] for path in paths]):
        if _is_volatile(folder):
            return f"{folder} may mean another folder in another process or at another time"
    return ""


def _is_volatile(folder: str, links: int = 40) -> bool:
    """Return whether a folder, or the target of a link on its path, is in one of `_VOLATILE`."""
    at, parts = "", folder.split("/")
    for number, part in enumerate(parts):
        if part in ("", "."):
            continue
        above, at = at, os.path.dirname(at).rstrip("/") if part == ".." else f"{at}/{part}"
        if f"{at}/".startswith(_VOLATILE):
            return True
        try:
            target = os.path.join(f"{above}/", os.readlink(at))
        except OSError:  # not a link
            continue
        rest = "/".join(parts[number + 1 :])
        return not links or _is_volatile(f"{target}/{rest}", links - 1)
    return False


def _pack(values: tuple[Any, ...], provided: tuple[str, ...]) -> list[bytes]:
    if not any(values):
        return [b""] * PACKED_FIELDS
    headers, absent, present, include_results, own_path = values
    fields: list[bytes] = []
    for is_provided in (False, True):
        own = [h for h in headers if h.path.startswith(provided) is is_provided]
        paths = [h.path for h in own]
        others = (
            [path for path in paths if path.startswith(provided) is is_provided]
            for paths in (absent, present)
        )
        stats = b"".join([_STAT.pack(*header[4:]) for header in own])
        fields += [joined(paths), stats, *map(joined, others)]
    origins = [(h.label, h.relative, "1" * h.path.startswith(provided)) for h in headers]
    return [
        *fields,
        joined([header.digest for header in headers]),
        joined([text for origin in origins for text in origin]),
        joined(include_results),
        joined(own_path),
    ]


def _unpack(fields: Sequence[bytes]) -> tuple[Any, ...]:
    from rtcompile.files.headers import Header

    parts = fields[_OWN], fields[_PROVIDED]
    files = [zip(texts_in(part[0]), _STAT.iter_unpack(part[1]), strict=True) for part in parts]
    digests, origins, include_results, own_path = map(texts_in, fields[2 * _PART :])
    headers = []
    rows = zip(digests, origins[::3], origins[1::3], origins[2::3], strict=True)
    for digest, label, relative, is_provided in rows:
        path, stat = next(files[bool(is_provided)])
        headers.append(Header(path, label, relative, digest, *stat))
    absent, present = (tuple(texts_in(parts[0][at] + parts[1][at])) for at in (2, 3))
    return tuple(headers), absent, present, tuple(include_results), tuple(own_path)


def joined(texts: Iterable[str]) -> bytes:
    """Return texts as one field of a file, each terminated by a NUL."""
    return "".join([f"{text}\0" for text in texts]).encode("utf-8", "surrogateescape")


def texts_in(data: bytes) -> list[str]:
    """Return the texts of a field that `joined` made."""
    return data.decode("utf-8", "surrogateescape").split("\0")[:-1]
