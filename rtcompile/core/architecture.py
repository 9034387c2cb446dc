"""`Arch`: a compute capability and its suffix, read from every spelling. `arch` chooses between them."""

from __future__ import annotations

from rtcompile.core.value import Value
from rtcompile.errors import InvalidRequest, shown

# Of code for exactly one generation of devices the first of these is preferred.
SUFFIXES = ("a", "f", "")

_PREFIXES = ("", "sm_", "compute_", "lto_")


class Arch(Value):
    """A compute capability and its suffix: ``Arch(9, 0, "a")`` is ``sm_90a``.

    Parameters
    ----------
    major, minor : int
        The compute capability.
    suffix : str
        ``"a"`` for architecture-specific features, ``"f"`` for family-specific ones, else ``""``.

    Raises
    ------
    InvalidRequest
        Numbers or a suffix that no architecture has.

    Examples
    --------
    >>> rtcompile.Arch.parse("sm_90a")
    Arch(major=9, minor=0, suffix='a')
    >>> str(rtcompile.Arch(12, 0)), rtcompile.Arch(12, 0).virtual
    ('sm_120', 'compute_120')
    """

    __slots__ = ("major", "minor", "suffix")

    major: int
    minor: int
    suffix: str

    def __init__(self, major: int, minor: int, suffix: str = "") -> None:
        for name, number, limit in (("major", major, 99), ("minor", minor, 9)):
            if not isinstance(number, int) or not 0 <= number <= limit:
                raise InvalidRequest(
                    f"Arch: {name} must be an int from 0 to {limit}, not {shown(number)}; "
                    "write Arch(9, 0, 'a') for sm_90a"
                )
        if not isinstance(suffix, str) or suffix not in ("", "a", "f"):
            raise InvalidRequest(f"Arch: suffix must be '', 'a' or 'f', not {shown(suffix)}")
        set_ = object.__setattr__
        set_(self, "major", major)
        set_(self, "minor", minor)
        set_(self, "suffix", suffix)

    @classmethod
    def parse(cls, text: str) -> Arch:
        """Read ``sm_90a``, ``compute_90a``, ``90a`` or ``9.0a``.

        Raises
        ------
        InvalidRequest
            Anything else; the message says how to write it.
        """
        known = _parsed.get(text) if type(text) is str else None
        if known is not None:
            return known
        if not isinstance(text, str):
            raise InvalidRequest(
                f"an architecture must be a str, not {shown(text)}; write {_meant(text)!r}"
            )
        # Parsed by hand: compiling a regular expression takes longer than a cache hit.
        kind, underscore, name = text.strip().lower().rpartition("_")
        suffix = name[-1:] if name.endswith(("a", "f")) else ""
        digits = name.removesuffix(suffix)
        major, minor = digits[:-1].removesuffix("."), digits[-1:]
        numbers = (major + minor).isascii() and major.isdecimal() and minor.isdecimal()
        if not numbers or len(major) > 2 or kind + underscore not in _PREFIXES:
            raise InvalidRequest(
                f"{shown(text)} is not an architecture; expected one like 'sm_90a'"
            )
        made = cls(int(major), int(minor), suffix)
        if len(_parsed) < _MOST_PARSED:
            _parsed[str(text)] = made
        return made

    @property
    def number(self) -> int:
        """The two- or three-digit number: 90, 120."""
        return self.major * 10 + self.minor

    @property
    def virtual(self) -> str:
        """The PTX architecture: ``compute_90a``."""
        return f"compute_{self.number}{self.suffix}"

    def __str__(self) -> str:
        return f"sm_{self.major}{self.minor}{self.suffix}"

    def __lt__(self, other: Arch) -> bool:
        if not isinstance(other, Arch):
            return NotImplemented
        return self._values() < other._values()

    def __le__(self, other: Arch) -> bool:
        return self == other or self < other

    def __gt__(self, other: Arch) -> bool:
        if not isinstance(other, Arch):
            return NotImplemented
        return other < self

    def __ge__(self, other: Arch) -> bool:
        return self == other or self > other


def exact(capability: tuple[int, int]) -> tuple[Arch, ...]:
    """Return the architectures that are exactly a device's, the preferred one first."""
    return tuple(Arch(*capability, suffix) for suffix in SUFFIXES)


_parsed: dict[str, Arch] = {}  # by spelling
_MOST_PARSED = 256


def _meant(value: object) -> str:
    """Return the architecture that a number, a pair or bytes stand for; ``"sm_90a"`` if none."""
    try:
        if isinstance(value, (tuple, list)):
            value = ".".join(map(str, value))
        elif isinstance(value, bytes):
            value = value.decode()
        return str(Arch.parse(str(value)))
    except Exception:  # whatever an object's own methods raise
        return "sm_90a"
