"""What has to be as it was before a bundle's build is used: the package's own headers.

They are verified by their contents, since a bundle comes from another machine, and read again only
if their stats have changed. This module imports only what the first hit needs.
"""

from __future__ import annotations

import os
import time

from rtcompile.bundles.parts import UnusableError, number
from rtcompile.cache import files
from rtcompile.storage import trusted
from rtcompile.storage.digest import content_digest, stat_at, stat_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CHECKS", "Checks", "read_checks"]

CHECKS = "bundle checks"  # the kind of the sealed blob that `read_checks` reads
_SETTLED_SECONDS = 1.0
_MOST_SEEN = 8192


class Checks:
    """What has to be as it was for a row to be used, in these folders.

    Attributes
    ----------
    folders : sequence of str
        The folders of the package's own headers.
    headers : list of (str, str)
        Paths, and the digests of what they have to contain.
    absent, present : list of str
        Paths that must not exist, or must.
    held : dict of str to float
        Below which folder everything was found to be so, and when (monotonic clock).
    """

    __slots__ = ("_others", "absent", "folders", "headers", "held", "present")

    def __init__(
        self,
        folders: Sequence[str],
        headers: list[tuple[str, str]],
        absent: list[str],
        present: list[str],
    ) -> None:
        self.folders = folders
        self.headers = headers
        self.absent = absent
        self.present = present
        self.held: dict[str, float] = {}
        self._others: dict[str, tuple[list[tuple[str, str]], list[str], list[str]]] = {}

    def is_empty(self) -> bool:
        return not (self.headers or self.absent or self.present)

    def hold(self, below: str) -> bool:
        """Say whether all is as it was; what lies `below` a folder is looked at once a second."""
        now = time.monotonic()
        settled = bool(below) and now - self.held.get(below, float("-inf")) < _SETTLED_SECONDS
        if settled:  # most of what CuPy's own kernels read is not even looked through
            headers, absent, present = self._above(below)
        else:
            headers, absent, present = self.headers, self.absent, self.present
        if not all(_contains(path, digest) for path, digest in headers):
            return False
        if any(os.access(path, os.F_OK) for path in absent):
            return False
        if not all(os.access(path, os.F_OK) for path in present):
            return False
        if below and not settled:
            self.held[below] = now
        return True

    def _above(self, below: str) -> tuple[list[tuple[str, str]], list[str], list[str]]:
        """Return what does not lie below a folder."""
        found = self._others.get(below)
        if found is None:
            found = self._others[below] = (
                [header for header in self.headers if not header[0].startswith(below)],
                [path for path in self.absent if not path.startswith(below)],
                [path for path in self.present if not path.startswith(below)],
            )
        return found


def read_checks(data: bytes, folders: Sequence[str]) -> Checks:
    """Return the checks that `writing` wrote; raise `UnusableError` where they are none."""
    fields = files.unseal(CHECKS, "", data)
    if fields is None or len(fields) != 3:
        raise UnusableError("it holds builds of another format")
    try:
        headers, absent, present = (_paths(field, folders) for field in fields)
        pairs = list(zip(headers[::2], headers[1::2], strict=True))
    except (ValueError, IndexError) as error:
        raise UnusableError(f"its checks cannot be understood ({error})") from None
    return Checks(folders, pairs, absent, present)


def _paths(field: bytes, folders: Sequence[str]) -> list[str]:
    """Return paths, of which a field has the number of the folder and the rest, and digests."""
    found = []
    for text in field.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        at, slash, rest = text.partition("/")
        found.append(f"{folders[number(at)]}/{rest}" if slash else text)
    return found


_seen: dict[str, tuple[tuple[int, int, int, int], str]] = {}


def _contains(path: str, digest: str) -> bool:
    """Say whether a file has this content; it is read anew only if its stat has changed."""
    known = _seen.get(path)
    if known is not None and known[0] == stat_at(path):
        return known[1] == digest
    try:
        # In steps of 4 ms, as the times of files are: 5 is CLOCK_REALTIME_COARSE.
        now = time.clock_gettime_ns(5)
        descriptor, status = trusted.open_regular(path)
        with open(descriptor, "rb", buffering=0) as file:
            found = content_digest(file.read())
    except OSError:
        return False
    if max(status.st_mtime_ns, status.st_ctime_ns) < now:  # else it may change within the step
        if len(_seen) >= _MOST_SEEN:
            _seen.clear()
        _seen[path] = stat_of(status), found
    else:
        _seen.pop(path, None)
    return found == digest
