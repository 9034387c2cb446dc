"""Reads what has to be checked before a bundle's build is used: the package's own headers.

A bundle comes from another machine, so the headers are first compared by their contents.
"""

from __future__ import annotations

from rtcompile.bundles.parts import UnusableError, number
from rtcompile.cache import files
from rtcompile.core.header import Header
from rtcompile.lookup.fileset import FileSet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

CHECKS = "bundle checks"  # the kind of the sealed blob that `read_checks` reads


def read_checks(data: bytes, folders: Sequence[str]) -> FileSet:
    """Return the files that `writing` wrote, in these folders; raise `UnusableError` where they are none."""
    fields = files.unseal(CHECKS, "", data)
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
