"""Checks of a caller's arguments: each returns the plain value, or says what was given instead."""

from __future__ import annotations

import os
from _operator import index
from itertools import islice

from rtcompile.errors import InvalidRequest, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_ITEMS_MAX = 1_000_000  # items read from an iterable without a length, which may be endless


def text(name: str, value: object) -> str:
    """Return an argument that must be text that a compiler can be given; a plain str."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a str, not {shown(value)}{_advice(value)}")
    plain = value if type(value) is str else str.__str__(value)  # numpy.str_, a member of an Enum
    # C strings end at NUL: NVRTC would compile the first part and cache it as the whole.
    at = plain.find("\0")
    if at >= 0:
        line = plain.count("\n", 0, at) + 1
        raise InvalidRequest(f"{name} holds a NUL byte (line {line}); C++ ends a source there")
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
    # The type first: an array compares with each of them, and has no truth value.
    word = str.__str__(value) if isinstance(value, str) else None
    if word is None or word not in allowed:
        words = ", ".join(map(repr, allowed))
        raise InvalidRequest(f"{name} must be one of {words}, not {shown(value)}")
    return word


def whole(name: str, value: object, least: int, most: int) -> int:
    """Return an argument that must be an integer within limits."""
    try:
        number = index(value)  # type: ignore[arg-type]
    except Exception:  # TypeError, and whatever an object's own __index__ raises
        number = least - 1
    if not least <= number <= most:
        raise InvalidRequest(
            f"{name} must be an integer from {least} to {most:,}, not {shown(value)}"
        )
    return number


def path(name: str, value: object) -> str:
    """Return an argument that must be a path: a str, or an object that stands for a path."""
    try:
        plain = str.__str__(value) if isinstance(value, str) else value
        found = os.fsdecode(plain)  # type: ignore[arg-type]
        os.fsencode(found)
    except (TypeError, ValueError):
        found = ""
    if not found or "\0" in found:
        raise InvalidRequest(f"{name} must be a path, not {shown(value)}")
    return found


def truth(name: str, value: object) -> bool:
    """Return an argument that is used as true or false."""
    try:
        return bool(value)
    except Exception:  # whatever an array or another class raises there
        raise InvalidRequest(f"{name} must be True or False, not {shown(value)}") from None


def _advice(value: object) -> str:
    if isinstance(value, (bytes, bytearray)):
        return "; decode the bytes as UTF-8 first"
    if isinstance(value, os.PathLike):
        return "; write str(path), or path.read_text() where the contents are meant"
    return "; leave it out" if value is None else ""
