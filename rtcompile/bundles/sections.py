"""A bundle's file as bytes: its index, its blobs, and the files that are checked before use.

A head of fixed size is followed by the sealed index, then by the blobs that its rows point to:
objects as the cache keeps them, a record of the headers that each was made of, and what has to be
checked of those before it is used. This module imports only what the first hit needs.

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


# --- A bundle's file as bytes: its index, and blobs that are verified before they are used --------

MAGIC = b"rtcompile bundle 4\n".ljust(32, b"\0")
HEAD = struct.Struct("<32sQ")  # magic, bytes of the index
INDEX = "bundle index"
_MAGIC_OF_ANY_FORMAT = b"rtcompile bundle "
_DIGITS = 15  # digits of a position in a file, enough for a petabyte

# The position of a blob after the index: start, size, digest.
Place = tuple[int, int, str]


class UnusableError(Exception):
    """A bundle cannot be used; the message says why."""


class Parts:
    """A bundle's file. Read when first needed, ignored with one warning when it cannot be used."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problem = ""  # why it is ignored, "" while it is not
        self.cuda: tuple[int, ...] = ()  # the major versions of CUDA that its builds were made with
        self.rows: list[bytes] = []
        # The digest of a request's fields to the rows that answer it.
        self.queries: dict[str, list[int]] = {}
        self.left_out: list[str] = []  # field by field: see `file.LeftOut`
        self.end_of_index = 0  # the position of the first blob
        self.reader: Bundle | None = None  # whoever reads it in this process, once somebody does
        self._is_open = False

    def open(self) -> bool:
        """Read the index if need be; say whether it is usable. On UnusableError, call `ignore`."""
        if not self._is_open and not self.problem:
            self._open()
        return not self.problem

    def ignore(self, reason: str) -> None:
        """Use it no more, and warn once."""
        if not self.problem:
            self.problem = reason
            warnings.warn(
                f"kernel bundle {self.path} is ignored: {reason}. Its builds are compiled instead.",
                RtcompileWarning,
                stacklevel=2,
            )

    def blob(self, place: Place) -> bytes:
        """Return a blob; raise `UnusableError` if it is not the one that the index names."""
        start, size, digest = place
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
            self.problem = "it is not there"  # normal in a checkout, so there is no warning
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
        # Any user may own the file: whoever installed the package also installed its Python code.
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


# --- Reads what has to be checked before a bundle's build is used ---------------------------------

CHECKS = "bundle checks"  # the kind of the sealed blob that `read_checks` reads


def read_checks(data: bytes, folders: Sequence[str]) -> FileSet:
    """Return the files that `writing` wrote, in these folders; raise `UnusableError` where they are none."""
    fields = sealed.unseal(CHECKS, "", data)
    if fields is None or len(fields) != 3:
        raise UnusableError("it holds builds of another format")
    try:
        texts, absent, present = (_paths(field, folders) for field in fields)
        pairs = zip(texts[::2], texts[1::2], strict=True)
    except (ValueError, IndexError) as error:
        raise UnusableError(f"its checks cannot be understood ({error})") from None
    headers = [Header(path, "user", path, digest, -1, 0, 0) for path, digest in pairs]
    return FileSet(headers=tuple(headers), absent=tuple(absent), present=tuple(present))


def _paths(field: bytes, folders: Sequence[str]) -> list[str]:
    """Return paths, which fields hold as a folder's number and the rest, and digests."""
    found = []
    for text in field.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        at, slash, rest = text.partition("/")
        found.append(f"{folders[number(at)]}/{rest}" if slash else text)
    return found
