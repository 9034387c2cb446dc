"""Reads a bundle's file: its index, its blobs, and the list of files to check before a build is used.

A head of fixed size is followed by the sealed index, then by the blobs that its rows point to:
objects as the cache keeps them, a record of the headers that each was compiled from, and the list of
those headers to check before use. This module imports only what the first hit needs.

A bundle comes from another machine, so the headers are first compared by their contents.
"""

from __future__ import annotations

import os
import struct
import warnings

from rtcompile.errors import RtcompileWarning
from rtcompile.files import sealed
from rtcompile.files.fileset import FileSet
from rtcompile.files.headers import Header
from rtcompile.files.sealed import content_digest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rtcompile.bundles.file import Bundle


MAGIC = b"rtcompile bundle 4\n".ljust(32, b"\0")
HEAD = struct.Struct("<32sQ")  # magic, bytes of the index
INDEX = "bundle index"
_MAGIC_OF_ANY_FORMAT = b"rtcompile bundle "
_DIGITS = 15  # digits of a position in a file, enough for a petabyte

# The start, size and digest of a blob; the index ends at position 0.
Extent = tuple[int, int, str]


class UnusableError(Exception):
    """A bundle cannot be used; the message says why."""


class Sections:
    """The sections of a bundle's file, read when first needed.

    A file that cannot be used is ignored with one warning.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.problem = ""  # why it is ignored, "" while it is not
        self.cuda: tuple[
            int, ...
        ] = ()  # the major versions of CUDA that its builds were compiled with
        self.rows: list[bytes] = []
        # The digest of a request's fields to the rows that serve it.
        self.queries: dict[str, list[int]] = {}
        self.left_out: list[str] = []  # field by field: see `file.LeftOut`
        self.end_of_index = 0  # the position of the first blob
        self.reader: Bundle | None = None  # the object that decodes its rows, made on demand
        self._is_open = False

    def open(self) -> bool:
        """Read the index on the first call; say whether it is usable. On UnusableError, call `ignore`."""
        if not self._is_open and not self.problem:
            self._open()
        return not self.problem

    def ignore(self, reason: str) -> None:
        """Stop using the bundle, and warn once."""
        if not self.problem:
            self.problem = reason
            warnings.warn(
                f"kernel bundle {self.path} is ignored: {reason}. Its builds are compiled instead.",
                RtcompileWarning,
                stacklevel=2,
            )

    def blob(self, extent: Extent) -> bytes:
        """Return a blob; raise `UnusableError` if its digest differs from the index."""
        start, size, digest = extent
        try:
            data = self._bytes(self.end_of_index + start, size)
        except (OSError, OverflowError) as error:
            raise UnusableError(str(error)) from None
        if content_digest(data) != digest:
            raise UnusableError("it is damaged, or was replaced while in use")
        return data

    def _open(self) -> None:
        try:
            head = self._bytes(0, HEAD.size)
        except FileNotFoundError:
            self.problem = "it is not there"  # this is normal in a checkout: no warning
            return
        except OSError as error:
            raise UnusableError(error.strerror or str(error)) from None
        if head[:32] != MAGIC:
            if head.startswith(_MAGIC_OF_ANY_FORMAT):
                raise UnusableError("it was made by an rtcompile with another bundle format")
            raise UnusableError("it is no bundle")
        try:
            _, size = HEAD.unpack(head)
            fields = sealed.unseal(INDEX, "", self._bytes(HEAD.size, size))
        except (struct.error, OSError):
            fields = None
        if not fields or len(fields) < 3:
            raise UnusableError("it is damaged")
        queries: dict[str, list[int]] = {}
        try:
            cuda = tuple(number(text) for text in fields[0].decode().split())
            for line in fields[1].decode().splitlines():
                query, *rows = line.split(" ")
                queries[query] = [number(row) for row in rows]
            left_out = fields[2].decode().split("\0")[:-1]
        except ValueError as error:
            raise UnusableError(f"its index cannot be understood ({error})") from None
        self.cuda, self.queries, self.left_out, self.rows = cuda, queries, left_out, fields[3:]
        self.end_of_index = HEAD.size + size
        self._is_open = True

    def _bytes(self, start: int, size: int) -> bytes:
        # The file may have any owner: the user who installed the package also installed its code.
        descriptor, status = sealed.open_regular(self.path)
        try:
            # A damaged size must not allocate more memory than the file has bytes.
            return os.pread(descriptor, min(size, status.st_size), start)
        finally:
            os.close(descriptor)


def number(text: str) -> int:
    """Read a count or a position; raise ValueError for one that no bundle can hold."""
    if len(text) > _DIGITS or not text.isascii() or not text.isdecimal():
        raise ValueError(f"{text[:_DIGITS]!r} is no number")
    return int(text)


# --- The files to check before a build is used ----------------------------------------------------

CHECKS = "bundle checks"  # the kind of the sealed blob that `read_checks` reads


def read_checks(data: bytes, folders: Sequence[str]) -> FileSet:
    """Decode a list of files to check, in these folders; raise `UnusableError` if it is damaged."""
    fields = sealed.unseal(CHECKS, "", data)
    if fields is None or len(fields) != 3:
        raise UnusableError("it contains builds of another format")
    try:
        texts, absent, present = (_paths(field, folders) for field in fields)
        pairs = zip(texts[::2], texts[1::2], strict=True)
    except (ValueError, IndexError) as error:
        raise UnusableError(f"its checks cannot be understood ({error})") from None
    headers = [Header(path, "user", path, digest, -1, 0, 0) for path, digest in pairs]
    return FileSet(headers=tuple(headers), absent=tuple(absent), present=tuple(present))


def _paths(field: bytes, folders: Sequence[str]) -> list[str]:
    """Decode a field's texts: a path is a folder's number and the rest, a digest has no slash."""
    found = []
    for text in field.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        at, slash, rest = text.partition("/")
        found.append(f"{folders[number(at)]}/{rest}" if slash else text)
    return found
