"""The base class of immutable values, checks of callers' arguments, and `Arch`.

`dataclasses` is not used, since importing it would take most of a cache hit's time.
"""

from __future__ import annotations

import os
from _operator import index
from itertools import islice

from rtcompile.errors import InvalidRequest, own, public, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, ClassVar, Literal, TypeVar

    # Literal types, with which type checkers find misspellings.
    Backend = Literal["auto", "nvrtc", "nvcc"]
    Target = Literal["cubin", "ptx", "ltoir", "object", "fatbin"]
    Fallback = Literal["auto", "never", "always", "nvrtc-first"]
    V = TypeVar("V", bound="Value")


# --- The base of rtcompile's immutable values -----------------------------------------------------


class Value:
    """An immutable value. A subclass annotates the fields; its constructor checks and puts them into `__dict__`."""

    _fields: ClassVar[tuple[str, ...]]

    def __init_subclass__(cls) -> None:
        cls._fields = tuple(cls.__annotations__)

    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self._fields])

    def _named(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._fields}

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set; use replace()")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be removed")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self is other or self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        fields = ", ".join([f"{name}={value!r}" for name, value in self._named().items()])
        return f"{type(self).__name__}({fields})"

    @public
    def replace(self: V, **changes: Any) -> V:
        """Return a copy with some fields changed; TypeError for a field that it does not have."""
        return type(self)(**{**self._named(), **changes})

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._values()


# --- Checks of a caller's arguments ---------------------------------------------------------------

_ITEMS_MAX = 1_000_000  # items read from an iterable without a length, which may be endless


def text(name: str, value: object) -> str:
    """Return an argument that must be text without NUL and lone surrogates, as a plain str."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a str, not {shown(value)}{_advice(name, value)}")
    plain = value if type(value) is str else str.__str__(value)  # numpy.str_, a member of an Enum
    # C strings end at NUL: NVRTC would compile only the first part.
    at = plain.find("\0")
    if at >= 0:
        line = plain.count("\n", 0, at) + 1
        raise InvalidRequest(f"{name} contains a NUL byte (line {line}); C++ ends a source there")
    if not plain.isascii():
        try:
            plain.encode()
        except UnicodeEncodeError as error:
            line = plain.count("\n", 0, error.start) + 1
            raise InvalidRequest(
                f"{name} is not valid UTF-8 (line {line}): {error.reason}; a lone surrogate comes "
                "from bytes that were decoded with errors='surrogateescape'"
            ) from None
    return plain


def strings(name: str, values: object) -> tuple[str, ...]:
    """Return an argument that must be a sequence of texts; one str is a sequence of one."""
    if type(values) is tuple or type(values) is list:
        for value in values:
            if type(value) is not str or not value.isascii() or "\0" in value:
                break
        else:
            return tuple(values)
    if isinstance(values, str):
        return (text(name, values),)
    found = items(name, values, "str")
    return tuple([text(f"{name}[{at}]", value) for at, value in enumerate(found)])


def items(name: str, values: object, what: str) -> tuple[Any, ...]:
    """Return an argument that must be a sequence, as a tuple."""
    if isinstance(values, (tuple, list)):
        return tuple(values)
    try:
        if isinstance(values, (str, bytes, bytearray, memoryview)):
            raise TypeError
        found = tuple(islice(values, _ITEMS_MAX + 1))  # type: ignore[call-overload]
    except TypeError:
        hint = "; leave it out" if values is None else f"; write {name}=[…]"
        raise InvalidRequest(
            f"{name} must be a list of {what}, not {shown(values)}{hint}"
        ) from None
    if len(found) > _ITEMS_MAX:
        raise InvalidRequest(f"{name} has more than {_ITEMS_MAX:,} elements; is it endless?")
    return found


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> str:
    """Return an argument that must be one of some words."""
    # Check the type first: comparing an array gives an array, which has no truth value.
    word = str.__str__(value) if isinstance(value, str) else ""
    if word not in allowed:
        words = ", ".join(map(repr, allowed))
        raise InvalidRequest(f"{name} must be one of {words}, not {shown(value)}")
    return word


def whole(name: str, value: object, least: int, most: int) -> int:
    """Return an argument that must be an integer within limits."""
    try:
        number = index(value)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001  # an object's own __index__ may raise anything
        number = least - 1
    if not least <= number <= most:
        raise InvalidRequest(
            f"{name} must be an integer from {least} to {most:,}, not {shown(value)}"
        )
    return number


def path(name: str, value: object) -> str:
    """Return an argument that must be a path: a str or a path-like object."""
    try:
        plain = str.__str__(value) if isinstance(value, str) else value
        found = os.fsdecode(plain)  # type: ignore[arg-type]
        os.fsencode(found)
    except (TypeError, ValueError):
        found = ""
    if not found or "\0" in found:
        raise InvalidRequest(f"{name} must be a path, not {shown(value)}")
    return found


def absolute(path: str) -> str:
    """Return the absolute path, with every ``..`` kept: ``link/..`` is above the link's target."""
    full = path if path[:1] == "/" else os.path.join(working_directory(path), path)
    return full if "/.." in full else os.path.abspath(full)


def working_directory(needed_by: str) -> str:
    """Return the working directory; if it was removed, the error names what needs it."""
    try:
        return getattr(own, "directory", None) or os.getcwd()
    except OSError:
        raise InvalidRequest(
            f"{shown(needed_by)} is looked up in the working directory, which was removed; change to "
            "another directory or give absolute paths"
        ) from None


def truth(name: str, value: object) -> bool:
    """Return an argument that is used as true or false."""
    try:
        return bool(value)
    except Exception:  # noqa: BLE001  # an object's own __bool__ may raise anything
        raise InvalidRequest(f"{name} must be True or False, not {shown(value)}") from None


def check_stream(stream: IO[str]) -> None:
    """Raise `InvalidRequest`, before anything is built, if `stream` cannot be written to."""
    try:
        stream.write("")
    except (AttributeError, TypeError, ValueError) as error:  # no file, a binary or a closed one
        raise InvalidRequest(
            f"log_stream must be a file that is open for text, not {shown(stream)}: {error}"
        ) from None


def _advice(name: str, value: object) -> str:
    if isinstance(value, (bytes, bytearray)):
        return "; decode the bytes as UTF-8 first"
    if isinstance(value, os.PathLike):
        # The path itself, as a source, would be compiled as C++.
        means_contents = name in ("source", "code")
        return f"; write {'path.read_text()' if means_contents else 'str(path)'}"
    return "; leave it out" if value is None else ""


# --- `Arch` ---------------------------------------------------------------------------------------

# The suffixes of architectures, the preferred one first.
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
        `major`, `minor` or `suffix` is not that of any architecture.

    Examples
    --------
    >>> rtcompile.Arch.parse("sm_90a")
    Arch(major=9, minor=0, suffix='a')
    >>> str(rtcompile.Arch(12, 0)), rtcompile.Arch(12, 0).virtual
    ('sm_120', 'compute_120')
    """

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
        self.__dict__.update(major=major, minor=minor, suffix=suffix)

    @classmethod
    def parse(cls, text: str) -> Arch:
        """Read ``sm_90a``, ``compute_90a``, ``90a`` or ``9.0a``.

        Raises
        ------
        InvalidRequest
            `text` is none of these; the message shows a correct one.
        """
        known = _parsed.get(text) if type(text) is str else None
        if known is not None:
            return known
        if not isinstance(text, str):
            raise InvalidRequest(
                f"an architecture must be a str, not {shown(text)}; write 'sm_90a'"
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


def exact(capability: tuple[int, int]) -> tuple[Arch, ...]:
    """Return the architectures that match a device exactly, the preferred one first."""
    return tuple(Arch(*capability, suffix) for suffix in SUFFIXES)


_parsed: dict[str, Arch] = {}  # by spelling
_MOST_PARSED = 256
