"""Reads a kernel's parameters as C++ declares them: ``float* x, float factor, int n``. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rtcompile.errors import InvalidRequest
from rtcompile.request import cxx

POINTER_BYTES = 8

# The sizes in bytes of types that NumPy lacks.
_OTHERS = {
    "__int128": 16,
    "unsigned __int128": 16,
    "__nv_bfloat16": 2,
    "nv_bfloat16": 2,
    "__nv_fp8_e4m3": 1,
    "__nv_fp8_e5m2": 1,
}

_BASIC = frozenset(
    ("bool", "char", "short", "int", "long", "signed", "unsigned", "float", "double", "void")
)
_BUILT_IN = _BASIC | {"__int128"}
_QUALIFIERS = re.compile(
    r"\b(?:const|volatile|struct|class|enum|union|typename|restrict|__restrict__|__restrict|__grid_constant__)\b"
)
_NAMESPACES = re.compile(r"\b(?:std|cuda|thrust|cupy)::|(?<![\w>])::")
_NAME = re.compile(r"[A-Za-z_]\w*\Z")


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Attributes
    ----------
    declaration : str
        The declaration as it was written.
    name : str
        The parameter's name, or ``""``.
    type : str
        Its type, or the type that it points to, without qualifiers and standard namespaces.
    pointer : bool
        Whether it is a pointer.
    const : bool
        Whether the value that it points to is constant.
    dtype : str
        NumPy's name for `type`, or ``""``.
    size : int or None
        Bytes of `type`; None if the type is unknown.
    """

    declaration: str
    name: str
    type: str
    pointer: bool
    const: bool
    dtype: str
    size: int | None

    @property
    def bytes(self) -> int | None:
        """Bytes of the parameter itself."""
        return POINTER_BYTES if self.pointer else self.size

    def __str__(self) -> str:
        return self.declaration


def parse(signature: str, kernel: str) -> tuple[Parameter, ...]:
    """Read a list of parameters without default values and comments."""
    if signature.strip() in ("", "void"):
        return ()
    return tuple(_parameter(part, kernel) for part in cxx.split(signature))


def _parameter(declaration: str, kernel: str) -> Parameter:
    text = _NAMESPACES.sub("", _QUALIFIERS.sub(" ", declaration))
    pointed, star, behind = text.partition("*")
    name = ""
    if star:
        name = behind.replace("*", "").strip()
    else:
        pointed, bracket, _ = text.partition("[")
        star = bracket
        words = pointed.split()
        if len(words) > 1 and words[-1] not in _BASIC and _NAME.match(words[-1]):
            name = words.pop()
            pointed = " ".join(words)
    type_ = _canonical(pointed)
    unclear = re.search(r"[&=(){}]", text) or not _is_type(type_)
    unclear = unclear or any(text.count(a) != text.count(b) for a, b in ("<>", "[]"))
    if unclear or (name and not _NAME.match(name)):
        raise InvalidRequest(
            f"{kernel}: {declaration!r} is not a parameter of a kernel; expected one like "
            "'const float* x' or 'int n'"
        )
    many = "*" in behind  # for a pointer to pointers no array has the right element type
    dtype = "" if many else cxx.NUMBERS.get(type_, "")
    size = POINTER_BYTES if many else int(dtype[1:] or 1) if dtype else _OTHERS.get(type_)
    const = "const" in declaration.partition("*")[0].split()
    return Parameter(declaration, name, type_, bool(star), const, dtype, size)


def _is_type(canonical: str) -> bool:
    """Return whether this is the name of one type; only built-in types and templates contain blanks."""
    words = re.sub(r"<.*>", "", canonical).split()
    return len(words) == 1 or (bool(words) and _BUILT_IN.issuperset(words))


def _canonical(text: str) -> str:
    """Return ``"unsigned long long"`` for ``"long unsigned  int long"``, other types as they are."""
    words = text.split()
    if not words or not _BASIC.issuperset(words):
        return re.sub(r"\s*([<>,])\s*", r"\1", " ".join(words))
    if "char" in words and "signed" in words:
        return "signed char"
    kept = [word for word in words if word not in ("signed", "unsigned", "int")] or ["int"]
    return ("unsigned " if "unsigned" in words else "") + " ".join(kept)
