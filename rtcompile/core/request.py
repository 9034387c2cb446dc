"""The request for a build and its result: frozen values that validate what they are given."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from rtcompile.core.arch import Arch
from rtcompile.errors import InvalidRequest, public, shown

__all__ = [
    "BuildInfo",
    "CompileRequest",
    "Header",
    "ObjectCode",
    "SearchDir",
    "header_texts",
    "items",
    "one_of",
    "path",
    "strings",
    "text",
    "truth",
    "whole",
]

BACKENDS = ("auto", "nvrtc", "nvcc")
TARGETS = ("cubin", "ptx", "ltoir", "object", "fatbin")
DEFAULT_NAME = "kernel.cu"
_NAME_MAX = 200  # bytes of a program's file name: file systems allow 255, and a digest is added
_PART_MAX, _PATH_MAX = 255, 1024  # bytes of a header's name, below a folder of ours
_ITEMS_MAX = 1_000_000  # items read from an iterable without a length, which may be endless
_NAMES_SHOWN = 3  # of a code's names


@dataclass(frozen=True, slots=True, init=False)
class CompileRequest:
    """One build: everything that can change the bytes, nothing that cannot.

    Parameters
    ----------
    source : str
        CUDA C++ source of the translation unit.
    options : sequence of str, or str
        Compiler options in NVRTC's or nvcc's spelling; ``'-I /x'`` is one option with its value.
        What ``--options-file`` names is read at once, and the request holds what is in it.
    arch : str or Arch, optional
        Architecture to compile for, ``"sm_90a"``. None: that of the current device.
    name_expressions : iterable of str
        C++ name expressions whose lowered names are wanted, ``"f<float>"``.
    name : str
        Program name, shown in diagnostics and part of the binary where line info is.
    backend : {"auto", "nvrtc", "nvcc"}
        ``"auto"`` is NVRTC, falling back to NVCC as the policy says.
    target : {"cubin", "ptx", "ltoir", "object", "fatbin"}
        The kind of code wanted. ``"object"`` is relocatable machine code, to be linked;
        ``"fatbin"`` is NVCC's.
    link : sequence
        Further inputs to link: source strings, paths, `ObjectCode`\\ s.
    headers : mapping of str to str
        Headers given as texts: the name that ``#include`` spells to its text. They are found before
        those of all directories but the source's own. The request holds sorted pairs.

    Raises
    ------
    InvalidRequest
        An argument of a wrong type or value; the message names it.

    Examples
    --------
    >>> request = rtcompile.CompileRequest("__global__ void k() {}", arch="sm_80")
    >>> request.replace(options=("-DN=4",)).options
    ('-DN=4',)
    """

    source: str
    options: tuple[str, ...]
    arch: Arch | None
    name_expressions: tuple[str, ...]
    name: str
    backend: str
    target: str
    link: tuple[Any, ...]
    headers: tuple[tuple[str, str], ...]

    def __init__(
        self,
        source: str,
        options: Sequence[str] | str = (),
        arch: str | Arch | None = None,
        name_expressions: Iterable[str] = (),
        name: str = DEFAULT_NAME,
        backend: str = "auto",
        target: str = "cubin",
        link: Sequence[Any] = (),
        headers: Mapping[str, str] | tuple[tuple[str, str], ...] = (),
    ) -> None:
        # The one place where these arguments are checked; every public function makes a request.
        if arch is not None and not isinstance(arch, Arch):
            try:
                arch = Arch.parse(arch)
            except InvalidRequest as error:
                raise InvalidRequest(f"arch: {error}") from None
        set_ = object.__setattr__
        set_(self, "source", text("source", source))
        set_(self, "options", _with_files(strings("options", options)))
        set_(self, "arch", arch)
        set_(self, "name_expressions", _names(name_expressions))
        set_(self, "name", _program(name))
        set_(self, "backend", one_of("backend", backend, BACKENDS))
        set_(self, "target", one_of("target", target, TARGETS))
        set_(self, "link", items("link", link, "source strings, paths, ObjectCodes"))
        set_(self, "headers", header_texts(headers))

    @public
    def replace(self, **changes: Any) -> CompileRequest:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


# --- checks of arguments
# ---------------------------------------------------------------------------


def text(name: str, value: object) -> str:
    """Return an argument that must be text that a compiler can be given; a plain str.

    Raises
    ------
    InvalidRequest
        It is of another type, holds a NUL, or cannot be written as UTF-8.
    """
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
    if isinstance(values, str):
        return (text(name, values),)
    found = items(name, values, "str")
    return tuple([text(f"{name}[{index}]", value) for index, value in enumerate(found)])


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
        number = operator.index(value)  # type: ignore[arg-type]
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


def header_texts(given: Any) -> tuple[tuple[str, str], ...]:
    """Return headers given as texts, sorted: a mapping's, or what this returned before.

    Raises
    ------
    InvalidRequest
        A name that leaves its folder, two names that cannot both be files, or what is no text.
    """
    if isinstance(given, tuple) and not given:
        return ()
    pairs = tuple(given.items()) if isinstance(given, Mapping) else given
    if not isinstance(pairs, tuple) or any(
        not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs
    ):
        raise InvalidRequest(
            f"headers must map names to texts, not {shown(given)}; write headers={{'tile.cuh': text}}"
        )
    found = {_header(name): text(f"headers[{shown(name)}]", value) for name, value in pairs}
    for name in found:
        parts = name.split("/")
        for end in range(1, len(parts)):
            folder = "/".join(parts[:end])
            if folder in found:
                raise InvalidRequest(
                    f"headers: {folder!r} is a header and the folder of {name!r}; rename one of them"
                )
    return tuple(sorted(found.items()))


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


def _names(values: object) -> tuple[str, ...]:
    if isinstance(values, str):
        raise InvalidRequest(
            "name_expressions must be a list of str, not one str, which CuPy splits into its "
            f"letters; write name_expressions=[{shown(values)}]"
        )
    names = strings("name_expressions", values)
    for index, name in enumerate(names):
        if "\n" in name.strip() or "\r" in name.strip():  # NVRTC reads the first line alone
            raise InvalidRequest(
                f"name_expressions[{index}] must be on one line, not {shown(name)}; write "
                f"{shown(' '.join(name.split()))}"
            )
    return names


def _header(given: object) -> str:
    name = text("headers: a name", given)
    parts = name.split("/")
    if (
        not name.isprintable()
        or any(character in name for character in '"<>\\')
        or any(part in ("", ".", "..") or len(part.encode()) > _PART_MAX for part in parts)
        or len(name.encode()) > _PATH_MAX
    ):
        raise InvalidRequest(
            f"headers: {shown(name)} is no header's name; it must be a path in the headers' own "
            "folder, as #include spells it: 'tile.cuh' or 'mylib/tile.cuh', without '..' or '.'"
        )
    return name


def _with_files(options: tuple[str, ...]) -> tuple[str, ...]:
    """Return options with each options file replaced by its content, which is part of the build."""
    if not any("optf" in option or "options-file" in option for option in options):
        return options
    from rtcompile.core import option_files

    return option_files.read_in(options)


def _program(value: object) -> str:
    name = text("name", value)
    file_name = name.rpartition("/")[2]
    if not name or not name.isprintable() or len(file_name.encode()) > _NAME_MAX:
        raise InvalidRequest(
            f"name must be a file's: printable, on one line, its last part at most {_NAME_MAX} "
            f"bytes long, not {shown(name)}; write name={DEFAULT_NAME!r} or leave it out"
        )
    return name


# What the labels of directories begin with that installed packages provide.
PROVIDED = "headers:"


class SearchDir(NamedTuple):
    """A directory the compiler searches for headers.

    `label` names it without its place ("user0", "cudart", "cccl", "crt", "cutlass", "cupy",
    "shims", …): cache keys carry labels, so two virtual environments share a cache.
    """

    label: str
    path: str

    @property
    def is_provided(self) -> bool:
        """Whether an installed package provides this directory through an entry point."""
        return self.label.startswith(PROVIDED)

    @property
    def is_own(self) -> bool:
        """Whether the user gave it (``-I``), and not the toolkit."""
        return self.label.startswith("user")


class Header(NamedTuple):
    """A header that a build read: its place and the digest of what it held.

    The digest is ``""`` where it is not known, since files changed while the compiler ran.
    A NamedTuple, because a hit creates hundreds: 0.08 ms for CuTe's 392, 0.37 ms as dataclasses.
    """

    path: str
    label: str
    relative: str
    digest: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int = 0


@dataclass(frozen=True, slots=True)
class BuildInfo:
    """How an `ObjectCode` came to be.

    Attributes
    ----------
    backend : str
        ``"nvrtc"`` or ``"nvcc"``.
    log : str
        The compiler's log of the build that made the code, warnings included.
    headers : tuple of Header
        Every header that was read.
    milliseconds : float
        Duration of this call, in milliseconds.
    hit : str or None
        Where the code was found (``"memory"``, ``"disk"``, …); None if it was compiled.
    why : str
        One line: why it was a miss, or why NVCC was used.
    compiler : str
        The compiler and its build, ``"nvrtc 12.9.86"``.
    notes : tuple of str
        Options that were changed, or that this compiler was not given, and why: a line each.
    compiled_in : float
        Milliseconds that the compiler took when the code was made, on whatever machine.
    """

    backend: str
    log: str = field(default="", repr=False)
    headers: tuple[Header, ...] = field(default=(), repr=False)
    milliseconds: float = 0.0
    hit: str | None = None
    why: str = ""
    compiler: str = ""
    notes: tuple[str, ...] = ()
    compiled_in: float = 0.0


@dataclass(frozen=True, slots=True, repr=False)
class ObjectCode:
    """Compiled code and how it was made.

    Attributes
    ----------
    code : bytes
        The cubin, PTX text, LTO-IR, relocatable object or fatbin.
    kind : {"cubin", "ptx", "ltoir", "object", "fatbin"}
        What `code` is.
    arch : Arch
        The architecture it was compiled for.
    lowered_names : mapping of str to str
        Name expression to the symbol in `code`.
    build : BuildInfo
        Backend, log, headers, duration, cache hit.

    Examples
    --------
    >>> source = "template <class T> __global__ void f(T* x) { *x += 1; }"
    >>> code = rtcompile.compile(source, arch="sm_80", name_expressions=["f<float>"])
    >>> code.lowered_names["f<float>"]
    '_Z1fIfEvPT_'
    """

    code: bytes
    kind: str
    arch: Arch
    lowered_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    build: BuildInfo = field(default_factory=lambda: BuildInfo(backend="nvrtc"))

    def __post_init__(self) -> None:
        if not isinstance(self.code, bytes):
            raise InvalidRequest(f"ObjectCode: code must be bytes, not {shown(self.code)}")
        if not isinstance(self.arch, Arch):
            raise InvalidRequest(
                f"ObjectCode: arch must be an Arch, not {shown(self.arch)}; write "
                "Arch.parse('sm_90a')"
            )
        one_of("ObjectCode: kind", self.kind, TARGETS)

    def __repr__(self) -> str:
        names = [*self.lowered_names]
        told = ", ".join(names[:_NAMES_SHOWN]) + (", …" if len(names) > _NAMES_SHOWN else "")
        size = f"{len(self.code):,} bytes"
        return f"<ObjectCode: {self.kind} for {self.arch}, {size}{told and ': '}{told}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A mappingproxy does not pickle.
        return _object_code, (self.code, self.kind, self.arch, dict(self.lowered_names), self.build)


def _object_code(
    code: bytes, kind: str, arch: Arch, lowered_names: dict[str, str], build: BuildInfo
) -> ObjectCode:
    return ObjectCode(code, kind, arch, MappingProxyType(lowered_names), build)
