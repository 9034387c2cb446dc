"""The base of rtcompile's immutable values: what a frozen dataclass gives, without its import.

A cache hit would spend most of its time on importing `dataclasses` and on defining classes with it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeVar

    V = TypeVar("V", bound="Value")


class Value:
    """A value whose fields, also of its constructor, are its class's `_fields`, or its `__slots__`."""

    __slots__ = ()
    _fields: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        if "_fields" not in cls.__dict__:
            cls._fields = tuple(cls.__slots__)

    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self._fields])

    def _arguments(self) -> tuple[Any, ...]:
        """Return what the constructor is given for a copy, field by field."""
        return self._values()

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be set; use replace()")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} cannot be removed")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        fields = zip(self._fields, self._values(), strict=True)
        return f"{type(self).__name__}({', '.join([f'{k}={v!r}' for k, v in fields])})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), dict(zip(self._fields, self._values(), strict=True)))


def _restored(cls: type[V], fields: dict[str, Any]) -> V:
    return cls(**fields)


def replace(value: V, **changes: Any) -> V:
    """Return a copy of a value with some fields changed; TypeError for a field that it has not."""
    fields = dict(zip(value._fields, value._arguments(), strict=True))
    return type(value)(**{**fields, **changes})
