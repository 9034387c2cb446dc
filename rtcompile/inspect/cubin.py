"""Reads machine code: a cubin's kernels and symbols, and the formats of a linker's input. Needs no GPU.

A cubin is a plain ELF64 file with NVIDIA's own sections: ``.text.K`` is kernel K's code, ``.nv.info`` and
``.nv.info.K`` hold attributes (undocumented; those below were compared with the log of ``-Xptxas -v``, CUDA 12.4 to
13.5). This module checks the code of every build, without the catalogue of messages, which takes 40 ms to import.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from rtcompile.named import NamedTuple
from rtcompile.request.units import LinkInput
from rtcompile.request.values import Arch

_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")

_EM_CUDA = 190
_SHT_NOBITS = 8
_STT_FUNC = 2
_STO_CUDA_ENTRY = 0x10

# Attributes of .nv.info: a symbol's index and a number.
_MIN_STACK_SIZE = 0x12  # the kernel's frame and those of its callees
_REGISTERS = 0x2F
# Attributes of .nv.info.K
_MAX_THREADS = 0x05
_REQUIRED_THREADS = 0x10
_PARAMETER = 0x17
_PARAMETER_BYTES = 0x19
_LARGE_PARAMETER = 0x45  # kernels with more than 4 KB of parameters

# From 9.0 on, static shared memory begins with these bytes, which the system uses.
_RESERVED_SHARED = 1024


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """A ``__global__`` function by its symbol; `types.KernelReport` explains the fields."""

    name: str
    registers: int = 0
    stack_bytes: int = 0
    shared_bytes: int = 0
    constant_bytes: int = 0
    parameters: tuple[tuple[int, int], ...] = ()
    parameter_bytes: int = 0
    max_threads: int | None = None
    required_threads: tuple[int, int, int] | None = None
    code_bytes: int = 0
    instructions: int | None = None


class Symbol(NamedTuple):
    """A symbol and its `section`, "" if it is undefined."""

    name: str
    size: int
    section: str


class Cubin(NamedTuple):
    """One cubin."""

    arch: Arch
    kernels: tuple[CompiledKernel, ...]


def read(code: bytes) -> Cubin:
    """Read a cubin; raise ValueError if `code` is not one, or is truncated."""
    elf = _Elf(code)
    return Cubin(elf.arch(), tuple(_kernels(elf)))


def symbols(code: bytes) -> tuple[Symbol, ...]:
    """Read a cubin's symbols that have a name; raise ValueError as `read` does."""
    return tuple(_Elf(code).symbols())


class _Elf:
    """Sections by name; every access is checked against the file's end."""

    def __init__(self, code: bytes) -> None:
        if code[:5] != b"\x7fELF\x02" or len(code) < _HEADER.size:
            raise ValueError("not a cubin: no 64-bit ELF header")
        self.code = code
        (_, machine, _, _, segments, sections, self.flags, _, segment_size, segment_count,
         section_size, section_count, names) = _HEADER.unpack_from(code)  # fmt: skip
        if machine != _EM_CUDA:
            raise ValueError(f"not a cubin: an ELF file for machine {machine}, not CUDA's 190")
        if section_size != _SECTION.size or names >= section_count:
            raise ValueError("not a whole cubin: its section headers are inconsistent")
        self._slice(segments, segment_size * segment_count)
        contents = self._slice(sections, section_size * section_count)
        self._headers = list(_SECTION.iter_unpack(contents))
        strings = self._contents(names)
        self.names = [_string(strings, header[0]) for header in self._headers]
        self._index = {name: index for index, name in enumerate(self.names)}

    def _slice(self, offset: int, size: int) -> bytes:
        if offset + size > len(self.code):
            raise ValueError(
                f"not a whole cubin: {len(self.code)} bytes, and its headers refer to byte {offset + size}"
            )
        return self.code[offset : offset + size]

    def _contents(self, index: int) -> bytes:
        _, kind, _, _, offset, size, *_ = self._headers[index]
        return b"" if kind == _SHT_NOBITS else self._slice(offset, size)

    def section(self, name: str) -> bytes:
        """Return a section's bytes; none if it does not exist."""
        index = self._index.get(name)
        return b"" if index is None else self._contents(index)

    def size(self, name: str) -> int:
        """Return a section's size; sections of shared memory have one without bytes in the file."""
        index = self._index.get(name)
        return 0 if index is None else int(self._headers[index][5])

    def table(self, name: str, layout: struct.Struct) -> Iterator[tuple[int, ...]]:
        """Yield the records of a section."""
        contents = self.section(name)
        if len(contents) % layout.size:
            raise ValueError(f"not a whole cubin: section {name} ends within a record")
        return layout.iter_unpack(contents)

    def symbols(self) -> Iterator[Symbol]:
        """Yield the symbols that have a name."""
        strings = self.section(".strtab")
        for start, _, _, section, _, size in self.table(".symtab", _SYMBOL):
            inside = self.names[section] if 0 < section < len(self.names) else ""
            if name := _string(strings, start):
                yield Symbol(name, size, inside)

    def entries(self) -> Iterator[tuple[int, str]]:
        """Yield the symbols that are kernels, by index and name."""
        strings = self.section(".strtab")
        for index, (start, info, other, section, *_) in enumerate(self.table(".symtab", _SYMBOL)):
            if info & 15 == _STT_FUNC and other & _STO_CUDA_ENTRY and section:
                yield index, _string(strings, start)

    def arch(self) -> Arch:
        """Return the architecture; from ABI 8 on only ptxas's note contains the suffix."""
        note = re.search(rb"-arch[ =](sm_\d+[af]?)", self.section(".note.nv.tkinfo"))
        if note is not None:
            return Arch.parse(note[1].decode())
        modern = self.code[8] >= 8
        number = self.flags >> 8 & 0xFF if modern else self.flags & 0xFF
        specific = self.flags & (0x8 if modern else 0x800)
        major, minor = divmod(number, 10)
        return Arch(major, minor, "a" if specific else "")


def _kernels(elf: _Elf) -> Iterator[CompiledKernel]:
    common: dict[tuple[int, int], int] = {}
    for attribute, value in _attributes(elf.section(".nv.info")):
        if len(value) == 8:
            symbol, number = struct.unpack("<II", value)
            common[symbol, attribute] = number
    arch = elf.arch()
    reserved = _RESERVED_SHARED if arch.major >= 9 else 0
    for index, name in elf.entries():
        parameters: list[tuple[int, int, int]] = []
        parameter_bytes = 0
        max_threads: int | None = None
        required_threads: tuple[int, int, int] | None = None
        for attribute, value in _attributes(elf.section(f".nv.info.{name}")):
            if attribute == _PARAMETER and len(value) == 12:
                _, ordinal, offset, packed = struct.unpack("<IHHI", value)
                parameters.append((ordinal, offset, packed >> 18))
            elif attribute == _LARGE_PARAMETER and len(value) == 12:
                parameters.append(struct.unpack("<4xHHI", value))
            elif attribute == _PARAMETER_BYTES and len(value) == 2:
                (parameter_bytes,) = struct.unpack("<H", value)
            elif attribute == _MAX_THREADS and len(value) == 12:
                x, y, z = struct.unpack("<III", value)
                max_threads = x * y * z
            elif attribute == _REQUIRED_THREADS and len(value) == 12:
                required_threads = struct.unpack("<III", value)
        yield CompiledKernel(
            name=name,
            registers=common.get((index, _REGISTERS), 0),
            stack_bytes=common.get((index, _MIN_STACK_SIZE), 0),
            shared_bytes=max(0, elf.size(f".nv.shared.{name}") - reserved),
            constant_bytes=elf.size(".nv.constant3"),
            parameters=tuple((offset, size) for _, offset, size in sorted(parameters)),
            parameter_bytes=parameter_bytes,
            max_threads=max_threads,
            required_threads=required_threads,
            code_bytes=elf.size(f".text.{name}"),
            instructions=_instructions(elf.section(f".text.{name}")) if arch.major >= 7 else None,
        )


def _instructions(code: bytes) -> int:
    """Count instructions of 16 bytes up to the last one that is not a NOP (opcode 0x918, undocumented)."""
    count = len(code) // 16
    while (
        count and int.from_bytes(code[count * 16 - 16 : count * 16 - 14], "little") & 0xFFF == 0x918
    ):
        count -= 1
    return count


def _attributes(contents: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the attributes of a .nv.info section: format, attribute, then a value or its size."""
    at = 0
    while at + 4 <= len(contents):
        form, attribute, short = struct.unpack_from("<BBH", contents, at)
        if form not in (1, 2, 3, 4):
            raise ValueError(f"an unknown kind of cubin: attribute {attribute:#x} of form {form}")
        size = short if form == 4 else 0
        value = contents[at + 4 : at + 4 + size] if form == 4 else contents[at + 2 : at + 4]
        if form == 4 and len(value) < size:
            raise ValueError("not a whole cubin: an attribute runs past its section")
        yield attribute, value
        at += 4 + size


def _string(strings: bytes, start: int) -> str:
    end = strings.find(b"\0", start)
    if end < 0:
        raise ValueError("not a whole cubin: a name without an end")
    return strings[start:end].decode("utf-8", "replace")


# --- Warnings about code that compiled silently and does not run as intended ----------------------

_TRAPS = re.compile(
    rb"Attempting to use [ -~]{1,80}? without [ -~]{1,60}"
    rb"|Arch conditional MMA instruction used without targeting [ -~]{1,60}"
)
_STATIC_SHARED_LIMIT = 48 << 10
# CUDA 13.5 lets a kernel of sm_90 have 227 KB: its ptxas checks the size, and an H200 with driver 580 loads and runs
# it. Such a cubin names its release; those of CUDA 12 do not.
_RELEASE = b"Cuda compilation tools, release "


def check_code(code: bytes, arch: Arch) -> tuple[str, ...]:
    """Warn of traps for instructions that the architecture lacks, and of too much static shared memory."""
    warnings, kernels = [], []
    # CuTe compiles each instruction only if its feature macro is set; otherwise the call prints this
    # message and aborts.
    if found := sorted({match[0].decode("ascii") for match in _TRAPS.finditer(code)}):
        specific = Arch(arch.major, arch.minor, "a")
        advice = (
            f"compile for {specific}" if not arch.suffix and arch.major >= 9 else "another atom"
        )
        warnings.append(
            f"The code contains traps instead of instructions: CuTe or CUTLASS reports "
            f"{', '.join(found[:3])!r}. {arch} lacks the required instructions: {advice}."
        )
    with suppress(ValueError):  # it is no cubin
        elf = _Elf(code)
        sections = [elf.size(name) for name in elf.names if name.startswith(".nv.shared.")]
        # Few kernels have a section of that size, so most code needs no further reading.
        is_large = max(sections, default=0) > _STATIC_SHARED_LIMIT
        kernels = [*_kernels(elf)] if is_large and _RELEASE not in code else []
    for kernel in kernels:
        if kernel.shared_bytes > _STATIC_SHARED_LIMIT:
            warnings.append(
                f"{kernel.name} has {kernel.shared_bytes} bytes of static shared memory; a kernel may have "
                f"{_STATIC_SHARED_LIMIT}. Make it dynamic (extern __shared__) and set "
                "max_dynamic_shared_size_bytes."
            )
    return tuple(warnings)


# --- The format of a linker's input, and why it cannot be linked ----------------------------------

_ELF = b"\x7fELF"
_ET_EXEC = 2
_MAGICS = (
    (b"\x50\xed\x55\xba", "fatbin"),
    (b"\xed\x43\x4e\x7f", "ltoir"),
    (b"!<arch>\n", "archive"),
    (b"!<thin>\n", "archive"),
)
_PTX = re.compile(rb"(?:\s|//[^\n]*\n|/\*.*?\*/)*\.version\s+(\d+\.\d+)\s", re.DOTALL)
_PTX_TARGET = re.compile(rb"^\s*\.target\s+(\w+)", re.MULTILINE)
_NOUNS = {
    "cubin": "a cubin",
    "object": "a host object",
    "fatbin": "a fatbin",
    "ltoir": "LTO-IR",
    "archive": "an archive",
    "ptx": "PTX",
}


def kind_of(data: bytes) -> str | None:
    """Return the format of the bytes: "cubin", "object", "fatbin", "ltoir", "archive", "ptx", or None."""
    if data.startswith(_ELF) and len(data) > 20:
        return "cubin" if int.from_bytes(data[18:20], "little") == _EM_CUDA else "object"
    for magic, kind in _MAGICS:
        if data.startswith(magic):
            return kind
    return "ptx" if _PTX.match(data) else None


def unfit(given: LinkInput, arch: Arch) -> str:
    """Return why an input would make the linker crash or would be dropped silently; "" if it is safe."""
    kind = kind_of(given.data)
    if kind is None:
        begins = f"begins with {given.data[:8]!r}" if given.data else "is empty"
        return f"'{given.name}' {begins}: no cubin, PTX, LTO-IR, fatbin, object or archive"
    # rtcompile's kind "object" includes relocatable machine code, which the linker calls a cubin.
    if kind != given.kind and (given.kind, kind) != ("object", "cubin"):
        return f"'{given.name}' was given as {_noun(given.kind)}, but it is {_noun(kind)}"
    if kind != "cubin":
        return ""
    try:
        own = read(given.data).arch
    except ValueError as error:
        return f"'{given.name}': {error}"
    if int.from_bytes(given.data[16:18], "little") == _ET_EXEC:
        return (
            f"'{given.name}' is fully linked, and a linker ignores it; compile it "
            "with -rdc=true (or -dlto)"
        )
    if own != arch and (own.suffix or (own.major, own.minor) > (arch.major, arch.minor)):
        return f"'{given.name}' is machine code for {own}; this link is for {arch}"
    return ""


def misfit(given: LinkInput, arch: Arch, log: str) -> str:
    """Return the problem of an input that the linker rejected with this log; "" if unknown."""
    kind = kind_of(given.data)
    name = f"'{given.name}'"
    if kind == "cubin":
        own = read(given.data).arch
        return f"{name} is machine code for {own}; this link is for {arch}" if own != arch else ""
    if kind == "ptx":
        version = _PTX.match(given.data)
        target = _PTX_TARGET.search(given.data)
        found = f"{name} is PTX {version[1].decode() if version else ''}"
        if "Unsupported .version" in log:
            return (
                f"{found}, from a newer toolkit than the linker; install that toolkit's nvJitLink"
            )
        return f"{found} for {target[1].decode()}; this link is for {arch}" if target else ""
    if kind == "ltoir" and "may need newer version" in log:
        return f"{name} is LTO-IR from a newer toolkit; install that toolkit's nvJitLink"
    if kind == "ltoir" and "arch newer than target" in log:
        return f"{name} is LTO-IR for a newer architecture than {arch}"
    if kind in ("fatbin", "object", "archive") and "bad input" in log:
        return f"{name}, {_noun(kind)}, contains no code for {arch}"
    return ""


def from_newer_toolkit(given: LinkInput, linker: tuple[int, int]) -> bool:
    """Return whether machine code is from a newer toolkit than the linker, which may then drop sections of it."""
    # Undocumented: the ABI version in a device ELF is 7 from CUDA 12 and 8 from CUDA 13.
    known = {12: 7, 13: 8}.get(linker[0])
    return known is not None and kind_of(given.data) == "cubin" and given.data[8] > known


def _noun(kind: str) -> str:
    return _NOUNS.get(kind, repr(kind))
