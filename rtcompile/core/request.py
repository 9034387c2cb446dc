"""What is asked for and what comes back: frozen values, no behaviour beyond validation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from rtcompile.core.arch import Arch
from rtcompile.errors import InvalidRequest

__all__ = [
    "BuildInfo",
    "CompileRequest",
    "Header",
    "ObjectCode",
    "SearchDir",
]

BACKENDS = ("auto", "nvrtc", "nvcc")
TARGETS = ("cubin", "ptx", "ltoir", "object", "fatbin")
DEFAULT_NAME = "kernel.cu"


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """One build: everything that can change the bytes, nothing that cannot.

    Parameters
    ----------
    source : str
        CUDA C++ source of the translation unit.
    options : sequence of str, or str
        Compiler options in NVRTC's or nvcc's spelling; ``'-I /x'`` is one option with its value.
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

    Raises
    ------
    InvalidRequest
        An argument of a wrong type or value; the message names it.
    """

    source: str
    options: tuple[str, ...] = ()
    arch: Arch | None = None
    name_expressions: tuple[str, ...] = ()
    name: str = DEFAULT_NAME
    backend: str = "auto"
    target: str = "cubin"
    link: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        if not isinstance(self.source, str):
            raise InvalidRequest(
                f"source must be str, not {type(self.source).__name__}"
                + ("; decode the bytes as UTF-8 first" if isinstance(self.source, bytes) else "")
            )
        set_(self, "options", _strings("options", self.options))
        set_(self, "name_expressions", _strings("name_expressions", self.name_expressions))
        if isinstance(self.arch, str):
            try:
                set_(self, "arch", Arch.parse(self.arch))
            except ValueError as error:
                raise InvalidRequest(f"arch: {error}") from None
        if isinstance(self.link, (str, bytes)):
            raise InvalidRequest("link must be a list of inputs, not one string")
        set_(self, "link", tuple(self.link))
        for field_name, value in (("source", self.source), ("name", self.name)):
            _reject_unprintable(field_name, value)
        for field_name, values in (
            ("options", self.options),
            ("name_expressions", self.name_expressions),
        ):
            for value in values:
                _reject_unprintable(field_name, value)
        if self.backend not in BACKENDS:
            raise InvalidRequest(f"backend must be one of {BACKENDS}, not {self.backend!r}")
        if self.target not in TARGETS:
            raise InvalidRequest(f"target must be one of {TARGETS}, not {self.target!r}")

    def replace(self, **changes: Any) -> CompileRequest:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


def _strings(field_name: str, values: Iterable[str] | str) -> tuple[str, ...]:
    if isinstance(values, str):
        return (values,)
    strings = tuple(values)
    for value in strings:
        if not isinstance(value, str):
            raise InvalidRequest(f"{field_name} must hold str, not {type(value).__name__}")
    return strings


def _reject_unprintable(field_name: str, value: str) -> None:
    # C strings end at NUL: NVRTC would compile the first part and cache it as the whole.
    at = value.find("\0")
    if at >= 0:
        line = value.count("\n", 0, at) + 1
        raise InvalidRequest(
            f"{field_name} holds a NUL byte (line {line}); C++ ends a source there"
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        line = value.count("\n", 0, error.start) + 1
        raise InvalidRequest(
            f"{field_name} is not valid UTF-8 (line {line}): {error.reason}"
        ) from None


@dataclass(frozen=True, slots=True)
class SearchDir:
    """A directory the compiler searches for headers.

    `label` names it without its place ("user0", "cudart", "cccl", "crt", "cutlass", "cupy",
    "shims", …): cache keys carry labels, so two virtual environments share a cache.
    """

    PROVIDED: ClassVar[str] = "headers:"

    label: str
    path: str

    @property
    def is_provided(self) -> bool:
        """Whether an installed package brings it, found by its entry point."""
        return self.label.startswith(self.PROVIDED)

    @property
    def is_own(self) -> bool:
        """Whether the user gave it (``-I``), and not the toolkit."""
        return self.label.startswith("user")


class Header(NamedTuple):
    """A header that a build read: its place and the digest of what it held.

    A NamedTuple, because a cache hit makes hundreds: 0.08 ms for CuTe's 392, 0.37 ms as dataclass.
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
    """

    backend: str
    log: str = field(default="", repr=False)
    headers: tuple[Header, ...] = field(default=(), repr=False)
    milliseconds: float = 0.0
    hit: str | None = None
    why: str = ""
    compiler: str = ""


@dataclass(frozen=True, slots=True)
class ObjectCode:
    """Compiled code and its story.

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
    """

    code: bytes
    kind: str
    arch: Arch
    lowered_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    build: BuildInfo = field(default_factory=lambda: BuildInfo(backend="nvrtc"))

    def __reduce__(self) -> tuple[Any, ...]:
        # A mappingproxy does not pickle.
        return _object_code, (self.code, self.kind, self.arch, dict(self.lowered_names), self.build)


def _object_code(
    code: bytes, kind: str, arch: Arch, lowered_names: dict[str, str], build: BuildInfo
) -> ObjectCode:
    return ObjectCode(code, kind, arch, MappingProxyType(lowered_names), build)
