"""Which package brings a header, as data: the next step of `cannot open source file`."""

from __future__ import annotations

__all__ = ["missing_header"]

# (header, what it belongs to, pip for CUDA 12, pip for CUDA 13, conda-forge); the first that
# matches the beginning of the name is meant. An empty column: nobody ships it there.
_HEADERS: tuple[tuple[str, str, str, str, str], ...] = ()


def missing_header(name: str) -> str | None:
    return None
