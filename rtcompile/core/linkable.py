"""The format of a linker's input, by its bytes, and why the input cannot be linked. Pure."""

from __future__ import annotations

import re

from rtcompile.core import cubin
from rtcompile.core.arch import Arch
from rtcompile.core.units import LinkInput

_ELF = b"\x7fELF"
_EM_CUDA = 190
_ET_EXEC = 2
_MAGICS = (
    (b"\x50\xed\x55\xba", "fatbin"),
    (b"\xed\x43\x4e\x7f", "ltoir"),
    (b"!<arch>\n", "archive"),
    (b"!<thin>\n", "archive"),
)
_PTX = re.compile(rb"(?:\s|//[^\n]*\n|/\*.*?\*/)*\.version\s+(\d+\.\d+)\s", re.DOTALL)
_PTX_TARGET = re.compile(rb"^\s*\.target\s+(\w+)", re.MULTILINE)
_IN_WORDS = {
    "cubin": "a cubin",
    "object": "a host object",
    "fatbin": "a fatbin",
    "ltoir": "LTO-IR",
    "archive": "an archive",
    "ptx": "PTX",
}


def kind_of(data: bytes) -> str | None:
    """Return what the bytes are: "cubin", "object", "fatbin", "ltoir", "archive", "ptx", or None."""
    if data.startswith(_ELF) and len(data) > 20:
        return "cubin" if int.from_bytes(data[18:20], "little") == _EM_CUDA else "object"
    for magic, kind in _MAGICS:
        if data.startswith(magic):
            return kind
    return "ptx" if _PTX.match(data) else None


def unfit(given: LinkInput, arch: Arch) -> str:
    """Say why an input must not reach the linker, which would crash on or drop it; "" if it may."""
    kind = kind_of(given.data)
    if kind is None:
        begins = f"begins with {given.data[:8]!r}" if given.data else "is empty"
        return f"'{given.name}' {begins}: no cubin, PTX, LTO-IR, fatbin, object or archive"
    # rtcompile also says "object" for relocatable machine code, which the linker calls a cubin.
    if kind != given.kind and (given.kind, kind) != ("object", "cubin"):
        return f"'{given.name}' was given as {_words(given.kind)}, but it is {_words(kind)}"
    return _unfit_cubin(given, arch) if kind == "cubin" else ""


def _unfit_cubin(given: LinkInput, arch: Arch) -> str:
    try:
        own = cubin.read(given.data).arch
    except ValueError as error:
        return f"'{given.name}': {error}"
    if int.from_bytes(given.data[16:18], "little") == _ET_EXEC:
        return (
            f"'{given.name}' is a finished program, of which a linker takes nothing; compile it "
            "with -rdc=true (or -dlto)"
        )
    if own != arch and (own.suffix or (own.major, own.minor) > (arch.major, arch.minor)):
        return f"'{given.name}' is machine code for {own}; this link is for {arch}"
    return ""


def misfit(given: LinkInput, arch: Arch, log: str) -> str:
    """Say what is wrong with an input that the linker refused with this log; empty if unknown."""
    kind = kind_of(given.data)
    name = f"'{given.name}'"
    if kind == "cubin":
        own = cubin.read(given.data).arch
        return f"{name} is machine code for {own}; this link is for {arch}" if own != arch else ""
    if kind == "ptx":
        version = _PTX.match(given.data)
        target = _PTX_TARGET.search(given.data)
        said = f"{name} is PTX {version[1].decode() if version else ''}"
        if "Unsupported .version" in log:
            return f"{said}, of a newer toolkit than the linker; install the nvJitLink of that one"
        return f"{said} for {target[1].decode()}; this link is for {arch}" if target else ""
    if kind == "ltoir" and "may need newer version" in log:
        return f"{name} is LTO-IR of a newer toolkit; install the nvJitLink of that one"
    if kind == "ltoir" and "arch newer than target" in log:
        return f"{name} is LTO-IR for a newer architecture than {arch}"
    if kind in ("fatbin", "object", "archive") and "bad input" in log:
        return f"{name}, {_words(kind)}, holds no code for {arch}"
    return ""


def from_newer_toolkit(given: LinkInput, linker: tuple[int, int]) -> bool:
    """Whether this is machine code of a toolkit that came after the linker.

    Undocumented: the ABI version in a device ELF's header is 7 from CUDA 12 and 8 from CUDA 13.
    nvJitLink 12.9 accepts the newer one and silently drops the sections that it does not know. A
    linker of a major version without a row is assumed to know every ABI version.
    """
    known = {12: 7, 13: 8}.get(linker[0])
    return known is not None and kind_of(given.data) == "cubin" and given.data[8] > known


def _words(kind: str) -> str:
    return _IN_WORDS.get(kind, repr(kind))
