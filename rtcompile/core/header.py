"""`SearchDir` and `Header`: where a compiler looks for headers, and what it read.

Both are tuples with names for their elements, since a hit makes hundreds of headers, and since the
import of `typing`, which `NamedTuple` needs, takes longer than a hit.
"""

from __future__ import annotations

from _operator import itemgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    R = TypeVar("R", bound="_Row")

# What the labels of directories begin with that installed packages provide.
PROVIDED = "headers:"


class _Row(tuple):  # type: ignore[type-arg]
    """A tuple whose elements have the names of `_fields`."""

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    def __getnewargs__(self) -> tuple[Any, ...]:
        return tuple(self)

    def __repr__(self) -> str:
        fields = ", ".join(f"{k}={v!r}" for k, v in self._asdict().items())
        return f"{type(self).__name__}({fields})"

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self, strict=True))

    def _replace(self: R, **changes: Any) -> R:
        return type(self)(**{**self._asdict(), **changes})


class SearchDir(_Row):
    """A directory the compiler searches for headers.

    `label` names it without its place ("user0", "cudart", "cccl", "crt", "cutlass", "cupy",
    "shims", …): cache keys carry labels, so two virtual environments share a cache.
    """

    __slots__ = ()
    _fields = ("label", "path")

    label: str = property(itemgetter(0))  # type: ignore[assignment]
    path: str = property(itemgetter(1))  # type: ignore[assignment]

    def __new__(cls, label: str, path: str) -> SearchDir:
        return tuple.__new__(cls, (label, path))

    @property
    def is_provided(self) -> bool:
        """Whether an installed package provides this directory through an entry point."""
        return self.label.startswith(PROVIDED)

    @property
    def is_own(self) -> bool:
        """Whether the user gave it (``-I``), and not the toolkit."""
        return self.label.startswith("user")


class Header(_Row):
    """A header that a build read: its place and the digest of what it held.

    The digest is ``""`` where it is not known, since files changed while the compiler ran. Times of
    0 are not trusted: the file is compared by its contents.
    """

    __slots__ = ()
    _fields = ("path", "label", "relative", "digest", "size", "mtime_ns", "ctime_ns", "inode")

    path: str = property(itemgetter(0))  # type: ignore[assignment]
    label: str = property(itemgetter(1))  # type: ignore[assignment]
    relative: str = property(itemgetter(2))  # type: ignore[assignment]
    digest: str = property(itemgetter(3))  # type: ignore[assignment]
    size: int = property(itemgetter(4))  # type: ignore[assignment]
    mtime_ns: int = property(itemgetter(5))  # type: ignore[assignment]
    ctime_ns: int = property(itemgetter(6))  # type: ignore[assignment]
    inode: int = property(itemgetter(7))  # type: ignore[assignment]

    def __new__(
        cls,
        path: str,
        label: str,
        relative: str,
        digest: str,
        size: int,
        mtime_ns: int,
        ctime_ns: int,
        inode: int = 0,
    ) -> Header:
        return tuple.__new__(cls, (path, label, relative, digest, size, mtime_ns, ctime_ns, inode))

    @property
    def is_own(self) -> bool:
        """Whether it is the user's, and not a toolkit's, an installed package's or the system's."""
        if self.label:
            return self.label.startswith("user")
        return not self.path.startswith("/usr/")
