"""Architectures: parse every spelling, choose the one to compile for. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Arch"]

_SPELLING = re.compile(r"(?:sm_|compute_|lto_)?(\d{1,2}?)\.?(\d)([af]?)")


@dataclass(frozen=True, order=True, slots=True)
class Arch:
    """A compute capability and its suffix: ``Arch(9, 0, "a")`` is ``sm_90a``.

    Parameters
    ----------
    major, minor : int
        The compute capability.
    suffix : str
        ``"a"`` for architecture-specific features, ``"f"`` for family-specific ones, else ``""``.
    """

    major: int
    minor: int
    suffix: str = ""

    @classmethod
    def parse(cls, text: str) -> Arch:
        """Read ``sm_90a``, ``compute_90a``, ``90a`` or ``9.0a``; raise ValueError for anything else."""
        match = _SPELLING.fullmatch(text.strip().lower())
        if match is None:
            raise ValueError(f"{text!r} is not an architecture; expected one like 'sm_90a'")
        return cls(int(match[1]), int(match[2]), match[3])

    @property
    def number(self) -> int:
        """The two- or three-digit number: 90, 120."""
        return self.major * 10 + self.minor

    @property
    def virtual(self) -> str:
        """The PTX architecture: ``compute_90a``."""
        return f"compute_{self.number}{self.suffix}"

    def __str__(self) -> str:
        return f"sm_{self.number}{self.suffix}"
