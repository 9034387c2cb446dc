"""Reads machine code: a cubin's sections and symbols, and their C++ names. Needs no GPU.

A cubin is a plain ELF64 file with NVIDIA's own sections. This module checks the code of every build, without the
catalogue of messages, which takes 40 ms to import.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import suppress

from rtcompile.errors import public
from rtcompile.named import NamedTuple
from rtcompile.request.object_code import ObjectCode
from rtcompile.request.values import Arch, one_of

_HEADER = struct.Struct("<16xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")

_EM_CUDA = 190
_SHT_NOBITS = 8
_STT_FUNC = 2
_STO_CUDA_ENTRY = 0x10

# From compute capability 9.0 on, the system uses these bytes at the beginning of static shared memory.
_RESERVED_SHARED = 1024


class Symbol(NamedTuple):
    """A symbol and its `section`, "" if it is undefined."""

    name: str
    size: int
    section: str
    is_kernel: bool


def read_symbols(code: bytes) -> tuple[Symbol, ...]:
    """Read a cubin's symbols that have a name; raise ValueError as `Elf` does."""
    return tuple(symbol for symbol in Elf(code).symbols() if symbol.name)


class Elf:
    """A cubin's sections by name; ValueError if the bytes are not a cubin, or are truncated: each access is checked."""

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
        """Return a section's bytes; ``b""`` if there is no such section."""
        index = self._index.get(name)
        return b"" if index is None else self._contents(index)

    def size(self, name: str) -> int:
        """Return a section's size; sections of shared memory have one without bytes in the file."""
        index = self._index.get(name)
        return 0 if index is None else int(self._headers[index][5])

    def shared_bytes(self, kernel: str) -> int:
        """Return the size of a kernel's static shared memory."""
        reserved = _RESERVED_SHARED if self.arch().major >= 9 else 0
        return max(0, self.size(f".nv.shared.{kernel}") - reserved)

    def symbols(self) -> Iterator[Symbol]:
        """Yield the symbols in the order of their indices; some have no name."""
        contents, strings = self.section(".symtab"), self.section(".strtab")
        if len(contents) % _SYMBOL.size:
            raise ValueError("not a whole cubin: section .symtab ends within a record")
        for start, info, other, section, _, size in _SYMBOL.iter_unpack(contents):
            inside = self.names[section] if 0 < section < len(self.names) else ""
            is_entry = info & 15 == _STT_FUNC and other & _STO_CUDA_ENTRY
            yield Symbol(_string(strings, start), size, inside, bool(is_entry and section))

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
# it. Its cubins contain this text; those of CUDA 12 do not.
_RELEASE = b"Cuda compilation tools, release "


def check_code(code: bytes, arch: Arch) -> tuple[str, ...]:
    """Warn of traps for instructions that the architecture lacks, and of too much static shared memory."""
    warnings = []
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
    with suppress(ValueError):  # the code is not a cubin
        elf = Elf(code)
        for section in elf.names:
            kernel = section.removeprefix(".nv.shared.")
            size = 0 if kernel == section else elf.shared_bytes(kernel)
            if size > _STATIC_SHARED_LIMIT and _RELEASE not in code:
                warnings.append(
                    f"{kernel} has {size} bytes of static shared memory; a kernel may have "
                    f"{_STATIC_SHARED_LIMIT}. Make it dynamic (extern __shared__) and set "
                    "max_dynamic_shared_size_bytes."
                )
    return tuple(warnings)


# --- The format of a linker's input ---------------------------------------------------------------

_MAGICS = (
    (b"\x50\xed\x55\xba", "fatbin"),
    (b"\xed\x43\x4e\x7f", "ltoir"),
    (b"!<arch>\n", "archive"),
    (b"!<thin>\n", "archive"),
)
PTX = re.compile(rb"(?:\s|//[^\n]*\n|/\*.*?\*/)*\.version\s+(\d+\.\d+)\s", re.DOTALL)


def kind_of(data: bytes) -> str | None:
    """Return the format of the bytes: "cubin", "object", "fatbin", "ltoir", "archive", "ptx", or None."""
    if data.startswith(b"\x7fELF") and len(data) > 20:
        return "cubin" if int.from_bytes(data[18:20], "little") == _EM_CUDA else "object"
    kinds = (kind for magic, kind in _MAGICS if data.startswith(magic))
    return next(kinds, "ptx" if PTX.match(data) else None)


# --- C++ names of mangled symbols -----------------------------------------------------------------

# Matches a static variable of a function.
_LOCAL = re.compile(r"_ZZ(?P<function>.*)E(?P<length>\d+)(?P<name>[A-Za-z_]\w*)")


@public
def symbols(code: ObjectCode, kind: str = "kernel") -> dict[str, str]:
    """Return what `ObjectCode.symbols` returns."""
    one_of("kind", kind, ("kernel", "variable"))
    if code.kind not in ("cubin", "ptx"):
        return {}
    found = kernel_symbols(code.code) if kind == "kernel" else variable_symbols(code.code)
    return {symbol: cpp_name(symbol) for symbol in found}


def cpp_name(symbol: str) -> str:
    """Return a symbol's C++ name with its namespaces; return an unmangled symbol as it is."""
    if local := _LOCAL.fullmatch(symbol):
        function = "::".join(names_in(f"_Z{local['function']}")) or local["function"]
        return f"{function}()::{local['name'][: int(local['length'])]}"
    return "::".join(names_in(symbol)) or symbol


def simple_name(symbol: str) -> str:
    """Return the name in a mangled symbol, without namespaces: ``k`` of ``_ZN2ns1kEPf``."""
    return (names_in(symbol) or [symbol])[-1]


def demangled(symbol: str) -> str:
    """Return a symbol's declaration, ``ns::k(float*)``; its simple name if there is no libstdc++."""
    if not symbol.startswith("_Z"):
        return symbol
    import ctypes

    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
        free = ctypes.CDLL(None).free
    except (OSError, AttributeError):
        return simple_name(symbol)
    demangle.restype = ctypes.c_void_p
    text = ctypes.c_void_p(demangle(symbol.encode(), None, None, None))
    name = ctypes.string_at(text).decode("utf-8", "replace") if text else simple_name(symbol)
    free(text)
    return name


def names_in(symbol: str) -> list[str]:
    """Return the namespaces and the name in a mangled symbol; none if it is not mangled."""
    if not symbol.startswith("_Z"):
        return []
    rest = symbol[2:].removeprefix("N").removeprefix("L")
    found: list[str] = []
    while match := re.match(r"L?(\d+)", rest):
        end = match.end() + int(match[1])
        found.append(rest[match.end() : end])
        rest = rest[end:]
        if not symbol.startswith("_ZN"):
            break
    # NVRTC puts declarations of unnamed namespaces into a namespace of its own.
    return [name for name in found if not name.startswith(("_INTERNAL_", "_GLOBAL__N_"))]


_PTX_ENTRY = re.compile(r"^(?:\.visible |\.weak )?\.entry ([\w$]+)", re.MULTILINE)


def kernel_symbols(code: bytes) -> list[str]:
    """Return the symbols of a cubin's or PTX's kernels; none for other code."""
    try:
        return [each.name for each in read_symbols(code) if each.is_kernel]
    except ValueError:
        return _PTX_ENTRY.findall(code.decode("utf-8", "replace"))


def variable_symbols(code: bytes) -> list[str]:
    """Return the symbols of a cubin's variables; none for other code."""
    spaces = (".nv.global", ".nv.constant3")
    try:
        found = read_symbols(code)
    except ValueError:
        return []
    return [each.name for each in found if each.size and each.section.startswith(spaces)]
