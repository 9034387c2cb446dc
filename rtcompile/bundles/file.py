"""Reads a bundle's file: an index by key, and blobs that are verified before they are used.

A head of fixed size is followed by the sealed index, then by the blobs that its rows point to:
objects as the cache keeps them, and a record of the headers that each was made of.
"""

from __future__ import annotations

import os
import struct
import warnings
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from rtcompile.cache import files, headers, manifests, objects
from rtcompile.core.arch import Arch
from rtcompile.core.includes import Dependencies
from rtcompile.core.request import ObjectCode, SearchDir
from rtcompile.errors import InvalidRequest, RtcompileError, RtcompileWarning
from rtcompile.storage import trusted
from rtcompile.storage.digest import content_digest

__all__ = ["Bundle", "Row"]

MAGIC = b"rtcompile bundle 2\n".ljust(32, b"\0")
HEAD = struct.Struct("<32sQ")  # magic, bytes of the index
INDEX = "bundle index"
_MAGIC_OF_ANY_FORMAT = b"rtcompile bundle "
_DIGITS = 15  # digits of a position in a file, enough for a petabyte


class Row(NamedTuple):
    """One build in a bundle, as its index describes it.

    A NamedTuple, because defining a dataclass takes 0.7 ms, and a first hit 2 ms.

    Attributes
    ----------
    key : str
        `Question.shipped_key()` of the question that it answers.
    arch, kind
        The architecture it was compiled for, and the kind of code: ``"cubin"`` or ``"ptx"``.
    backend, compiler : str
        The compiler that made it.
    cuda : int
        Major version of that compiler.
    program, source, options, names
        What it was compiled from, for messages: the program's name, the digest of its source, its
        effective options, its name expressions.
    labels : tuple of str
        Labels of the search directories that the record of its headers refers to.
    """

    key: str
    arch: Arch
    kind: str
    backend: str
    compiler: str
    cuda: int
    program: str
    source: str
    options: tuple[str, ...]
    names: tuple[str, ...]
    labels: tuple[str, ...]

    def sealed_key(self) -> str:
        """Return the key that the row's object and the record of its headers are sealed under."""
        return " ".join((self.key, str(self.arch), self.kind, str(self.cuda)))


# The position of a blob after the index: start, size, digest.
_Place = tuple[int, int, str]
_Entry = tuple[Row, _Place, _Place]


def _decode(data: bytes) -> _Entry:
    texts = data.decode("utf-8", "surrogateescape").split("\0")[:-1]
    key, arch, kind, backend, compiler, cuda, program, source = texts[:8]
    code, record = ((_number(texts[i]), _number(texts[i + 1]), texts[i + 2]) for i in (8, 11))
    groups = []
    at = 14
    for _ in range(3):
        count = _number(texts[at])
        groups.append(tuple(texts[at + 1 : at + 1 + count]))
        at += 1 + count
    row = Row(
        key, Arch.parse(arch), kind, backend, compiler, _number(cuda), program, source, *groups
    )
    return row, code, record


def _number(text: str) -> int:
    """Read a count or a position; raise ValueError for one that no bundle can hold."""
    if len(text) > _DIGITS or not text.isascii() or not text.isdecimal():
        raise ValueError(f"{text[:_DIGITS]!r} is no number")
    return int(text)


class _UnusableError(Exception):
    """A bundle cannot be used; the message says why."""


class Bundle:
    """A bundle on disk. Read when first asked, ignored with one warning when it cannot be used.

    Attributes
    ----------
    path : str
    problem : str
        Why it is ignored, ``""`` while it is not.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.problem = ""
        self._cuda: tuple[int, ...] = ()
        self._index: dict[bytes, list[bytes]] | None = None
        self._blobs_at = 0
        # What was verified in this process: the object, and the package's headers that were
        # checked.
        self._verified: dict[
            tuple[Row, tuple[SearchDir, ...]], tuple[ObjectCode, Dependencies]
        ] = {}

    def rows(self, key: str | None = None) -> list[Row]:
        """Return the builds under `key`, or all of them; none if the bundle cannot be used."""
        try:
            return [row for row, _, _ in self._entries(key)]
        except _UnusableError as error:
            self._ignore(str(error))
            return []

    def insist_on_cuda(self, major: int) -> None:
        """Ignore the bundle if none of its builds was made with this major version of CUDA."""
        if not self.problem and self._cuda and major not in self._cuda:
            made_with = " and ".join(map(str, self._cuda))
            self._ignore(f"it was made with CUDA {made_with}, and this process uses CUDA {major}")

    def load(self, row: Row, own: tuple[SearchDir, ...]) -> ObjectCode | None:
        """Return the build of a row; None if the package's own headers have changed since.

        Parameters
        ----------
        row : Row
            One of `rows()`.
        own : tuple of SearchDir
            The directories of the package's own headers on this machine.
        """
        known = self._verified.get((row, own))
        if known is not None and headers.same(known[1]):
            return _found(known[0], "memory")
        try:
            obj, checked, recorded = self._read(row, own)
        except _UnusableError as error:
            self._ignore(str(error))
            return None
        fresh = headers.refresh(checked)
        if fresh is None:
            return None
        obj = replace(obj, build=replace(obj.build, headers=(*fresh.headers, *recorded.headers)))
        self._verified[row, own] = obj, fresh
        return _found(obj, "bundle")

    def difference(self, row: Row, own: tuple[SearchDir, ...]) -> str:
        """Describe how the package's own headers differ from those that the row was made of."""
        with suppress(_UnusableError):
            return headers.difference(self._read(row, own)[1])
        return ""

    def contents(self) -> list[tuple[Row, bytes, bytes]]:
        """Return each row, its object's file and the record of its headers, every byte verified.

        Raises
        ------
        InvalidRequest
            The file cannot be used; the message says why.
        """
        try:
            entries = self._entries(None)
            found = [(row, self._blob(code), self._blob(record)) for row, code, record in entries]
        except _UnusableError as error:
            raise InvalidRequest(f"{self.path} cannot be used: {error}") from None
        places = [place for _, *both in entries for place in both]
        end = self._blobs_at + max((start + size for start, size, _ in places), default=0)
        if os.path.getsize(self.path) > end:
            raise InvalidRequest(f"{self.path}: what it has from byte {end} on belongs to no build")
        return found

    def _ignore(self, reason: str) -> None:
        if not self.problem:
            self.problem = reason
            warnings.warn(
                f"kernel bundle {self.path} is ignored: {reason}. Its builds are compiled instead.",
                RtcompileWarning,
                stacklevel=2,
            )

    def _entries(self, key: str | None) -> list[_Entry]:
        if self.problem:
            return []
        if self._index is None:
            self._index = self._open()
        found = (
            [row for rows in self._index.values() for row in rows]
            if key is None
            else self._index.get(key.encode("utf-8", "surrogateescape"), [])
        )
        try:
            return [_decode(row) for row in found]
        except (ValueError, IndexError, TypeError, RtcompileError) as error:
            raise _UnusableError(f"its index cannot be understood ({error})") from None

    def _open(self) -> dict[bytes, list[bytes]]:
        try:
            head = self._bytes(0, HEAD.size)
        except FileNotFoundError:
            self.problem = "it is not there"  # normal in a checkout, so there is no warning
            return {}
        except OSError as error:
            raise _UnusableError(error.strerror or str(error)) from None
        if head[:32] != MAGIC:
            if head.startswith(_MAGIC_OF_ANY_FORMAT):
                raise _UnusableError("it was made by an rtcompile with another bundle format")
            raise _UnusableError("it is no bundle")
        try:
            _, size = HEAD.unpack(head)
            fields = files.unseal(INDEX, "", self._bytes(HEAD.size, size))
        except (struct.error, OSError):
            fields = None
        if not fields:
            raise _UnusableError("it is damaged")
        try:
            self._cuda = tuple(_number(text) for text in fields[0].decode().split())
        except ValueError as error:
            raise _UnusableError(f"its index cannot be understood ({error})") from None
        self._blobs_at = HEAD.size + size
        index: dict[bytes, list[bytes]] = {}
        for row in fields[1:]:
            index.setdefault(row[: row.find(b"\0")], []).append(row)
        return index

    def _bytes(self, start: int, size: int) -> bytes:
        # Any user may own the file: whoever installed the package also installed its Python code.
        descriptor, status = trusted.open_regular(self.path)
        try:
            # A damaged size must not allocate more memory than the file has bytes.
            return os.pread(descriptor, min(size, status.st_size), start)
        finally:
            os.close(descriptor)

    def _blob(self, place: _Place) -> bytes:
        start, size, digest = place
        try:
            data = self._bytes(self._blobs_at + start, size)
        except (OSError, OverflowError) as error:
            raise _UnusableError(str(error)) from None
        if content_digest(data) != digest:
            raise _UnusableError("it is damaged, or was replaced while in use")
        return data

    def _read(
        self, row: Row, own: tuple[SearchDir, ...]
    ) -> tuple[ObjectCode, Dependencies, Dependencies]:
        entry = next((e for e in self._entries(row.key) if e[0] == row), None)
        if entry is None:
            raise _UnusableError("it was replaced while in use")
        _, code, record = entry
        decoded = objects.decode(row.sealed_key(), self._blob(code))
        # The toolkit's directories may be missing or different here; their labels stand for them.
        others = [SearchDir(label, f"<{label}>") for label in row.labels[len(own) :]]
        builds = manifests.decode(row.sealed_key(), self._blob(record), [*own, *others])
        if decoded is None or builds is None or len(builds) != 2:
            raise _UnusableError("it holds builds of another format, or under another's key")
        return decoded[1], builds[0].dependencies, builds[1].dependencies


def _found(obj: ObjectCode, where: str) -> ObjectCode:
    return replace(obj, build=replace(obj.build, hit=where))
